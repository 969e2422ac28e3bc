//! Programs that the shell does not find.

use super::{Entity, Form, form};
use crate::host;
use crate::rules::PastedError;

pub(super) fn forms() -> Vec<Form> {
    vec![
        form("{program}: command not found", read),
        form("command not found: {program}", read),
        form("{program}: not found", read),
        form("No such file or directory: '{program}'", read),
        form("Command '['which', '{program}']' returned non-zero", read),
        form("Could not find nvcc", nvcc),
        form("Failed to find nvcc", nvcc),
    ]
}

fn nvcc(seen: &PastedError, _: &'static str) -> Option<Entity> {
    named(seen, "nvcc")
}

fn read(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let word = seen.word("program")?;
    let program = word.rsplit(['/', ':']).next().unwrap_or(word);
    list_as_folder(word, program).or_else(|| named(seen, program))
}

/// A path that begins with a colon or has one within it: a variable that names one folder has a list of folders.
fn list_as_folder(word: &str, program: &str) -> Option<Entity> {
    let list =
        word.rsplit_once("/bin/").map(|(root, _)| root).filter(|root| root.contains(":/"))?;
    let folder = list.split(':').rfind(|folder| folder.starts_with('/'))?;
    (program == "nvcc").then(|| {
        Entity::new("command", word)
            .meaning(format!(
                "The path of {program} has a colon: CUDA_HOME (or CUDA_PATH) is a list of folders, as after `export CUDA_HOME=$CUDA_HOME:{folder}`, and has to be one folder."
            ))
            .fix([format!("export CUDA_HOME={folder}"), "# and the same line in ~/.bashrc or ~/.profile".to_owned()])
            .rank(5)
    })
}

fn named(seen: &PastedError, program: &str) -> Option<Entity> {
    let machine = seen.machine();
    let entity = Entity::new("command", program);
    let entity = match program {
        "nvcc" => {
            let toolkit = machine.toolkits.iter().find(|toolkit| toolkit.has_nvcc);
            let entity = entity.meaning(
                "nvcc is the compiler of the CUDA toolkit. The driver and PyTorch's wheels do not bring it: running a model does not \
                 need it, compiling an extension does.",
            );
            match toolkit {
                Some(toolkit) => {
                    let bin = format!("{}/bin", toolkit.root);
                    entity
                        .evidence("a toolkit with nvcc is installed, outside of PATH", bin.clone())
                        .fix([format!("export PATH={bin}:$PATH"), format!("export CUDA_HOME={}", toolkit.root)])
                        .confirmed(Some(true))
                }
                None => {
                    let cuda = seen.env().and_then(|env| env.torch.as_ref()?.cuda.as_deref().and_then(knowledge::minor_of));
                    entity.fix(host::install_toolkit(machine, cuda.unwrap_or((13, 0))))
                }
            }
        }
        "nvidia-smi" => entity
            .meaning("nvidia-smi comes with NVIDIA's driver: no driver is installed, or the container was started without GPUs.")
            .fix(["firstlight doctor"]),
        "uv" => entity
            .meaning("uv is not installed, or not on PATH.")
            .fix(["python3 -m pip install uv  # or: curl -LsSf https://astral.sh/uv/install.sh | sh"]),
        "pip" | "pip3" => entity
            .meaning("pip is not installed for this Python, or the virtual environment is not activated.")
            .fix(["python3 -m ensurepip --upgrade", "# Debian and Ubuntu: sudo apt-get install --yes python3-pip python3-venv"]),
        "ninja" | "cmake" => entity
            .meaning(format!("{program} drives the build of C++ and CUDA extensions and is not installed where the build runs."))
            .fix([seen.installer().install(&[program.to_owned()], None)]),
        "gcc" | "g++" | "c++" | "cc1plus" | "make" => entity
            .meaning("The host compiler is missing. Triton and torch.compile need it at run time, extensions when they are built.")
            .fix([host::install_package(machine, "build-essential", "gcc-c++")]),
        "vllm" | "sglang" | "accelerate" | "torchrun" | "deepspeed" | "huggingface-cli" | "hf" | "ray" | "trtllm-serve" => {
            let package = match program {
                "torchrun" => "torch",
                "huggingface-cli" | "hf" => "huggingface-hub",
                "trtllm-serve" => "tensorrt-llm",
                other => other,
            };
            let installed = super::super::modules::installed(seen, package);
            let entity = entity.package(package).meaning(format!(
                "{program} is a program of the package {package}. It is on PATH only while the environment that has the package is \
                 activated."
            ));
            match installed {
                Some((env, dist)) => entity
                    .evidence(format!("{} {}", dist.name, dist.version), dist.path.clone())
                    .fix([format!("source {}/bin/activate", env.root)])
                    .confirmed(Some(true)),
                None => entity.fix([seen.installer().install(&[package.to_owned()], None)]),
            }
        }
        "nvidia-ctk" | "nvidia-container-cli" | "nvidia-container-runtime" => entity
            .meaning("NVIDIA's container toolkit is not installed on the host.")
            .fix(["# on the host, from NVIDIA's repository:", "sudo apt-get install --yes nvidia-container-toolkit"]),
        "ncu" | "nsys" | "compute-sanitizer" | "cuobjdump" | "ptxas" => entity
            .meaning(format!("{program} belongs to the CUDA toolkit, and is in its bin folder."))
            .fix(["ls /usr/local/cuda*/bin"]),
        "git" | "git-lfs" | "ffmpeg" => entity
            .meaning(format!("{program} is a system package that is not installed here."))
            .fix([host::install_package(machine, program, program)]),
        _ => return None,
    };
    Some(entity.rank(2))
}
