//! Builds environments with torch and transformers from the Python registry below the target folder, to test the Python package.

use crate::steps::{output, run};
use crate::wheels::python_with;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const UV: &str = "uv==0.13.9";

/// Versions of one environment. Only the CUDA libraries in `cuda` are real; `no_cuda.py` makes stubs of the others.
#[derive(Clone, Copy)]
struct Stack {
    torch: &'static str,
    transformers: &'static str,
    cuda: &'static [&'static str],
}

const RECENT: Stack = Stack {
    torch: "2.11.0",
    transformers: "5.17.0",
    cuda: &["nvidia-cuda-runtime==13.0.96", "nvidia-cuda-cupti==13.0.85"],
};

/// Older stacks; each commit tests one.
const OLDER: [Stack; 2] = [
    Stack {
        torch: "2.4.1",
        transformers: "4.57.6",
        cuda: &[
            "nvidia-cuda-runtime-cu12==12.1.105",
            "nvidia-cuda-cupti-cu12==12.1.105",
            "nvidia-nvtx-cu12==12.1.105",
        ],
    },
    Stack {
        torch: "2.6.0",
        transformers: "4.57.6",
        cuda: &["nvidia-cuda-runtime-cu12==12.4.127", "nvidia-cuda-cupti-cu12==12.4.127"],
    },
];

/// The newest release of transformers, for the sweep over its models.
const NEWEST: Stack = Stack { transformers: "5.24.0", ..RECENT };

/// torch's other dependencies: it is installed without its requirements, which include 3 GB of CUDA.
const DEPENDENCIES: [&str; 9] = [
    "typing-extensions==4.15.0",
    "sympy==1.13.3",
    "networkx==3.4.2",
    "jinja2==3.1.6",
    "fsspec==2025.9.0",
    "filelock==3.20.0",
    "numpy==2.2.6",
    "setuptools==80.9.0",
    "packaging==25.0",
];

/// Libraries that pack weights in their quantized formats, with their dependencies. Tests load only single files of [`LOADED`], so
/// its packages are installed without dependencies.
const PACKERS: [&str; 9] = [
    "bitsandbytes==0.50.2",
    "gguf==0.19.0",
    "compressed-tensors==0.11.0",
    "pydantic==2.11.9",
    "pydantic-core==2.33.2",
    "annotated-types==0.7.0",
    "typing-inspection==0.4.2",
    "frozendict==2.4.6",
    "loguru==0.7.3",
];

/// Further packers, each with its options of uv: auto-gptq has no wheels for every Python, but the loaded file works with all;
/// autoawq is an sdist without compiled code.
const LOADED: [&[&str]; 2] =
    [&["auto-gptq==0.7.1", "--only-binary=:all:", "--python-version=3.11"], &["autoawq==0.2.9"]];

/// Hugging Face's `kernels`, in the version that [`RECENT`]'s transformers requires, without its dependencies for downloads.
const HUB_KERNELS: [&str; 3] = ["kernels==0.16.2", "kernels-data==0.16.2", "tomlkit==0.13.3"];

const NO_CUDA: &str = include_str!("torch/no_cuda.py");

/// A Python with a recent torch, and one with an older torch, which the commit's hash selects.
pub(crate) fn prepare(root: &Path, target: &Path) -> anyhow::Result<[PathBuf; 2]> {
    let uv = uv(target)?;
    let head = output(Command::new("git").current_dir(root).args(["rev-parse", "HEAD"]));
    let index = usize::from(head.is_ok_and(|head| has_odd_digit(&head)));
    let build = |stack: &Stack| stack.build(&uv, &target.join("python-torch"));
    Ok([build(&RECENT)?, build(&OLDER[index])?])
}

fn uv(target: &Path) -> anyhow::Result<PathBuf> {
    Ok(python_with(&target.join("uv"), UV)?.with_file_name("uv"))
}

/// The Python of the stack with a release of transformers, `5.17`, `5.24` or `4.57`.
pub(crate) fn for_sweep(target: &Path, release: &str) -> anyhow::Result<PathBuf> {
    let all = [RECENT, NEWEST, OLDER[1]];
    let stack = all.iter().find(|stack| stack.transformers.starts_with(release));
    let Some(stack) = stack else { anyhow::bail!("no stack has transformers {release}") };
    stack.build(&uv(target)?, &target.join("python-torch"))
}

/// A folder with the packers for a Python of [`prepare`].
pub(crate) fn packers(target: &Path, python: &Path) -> anyhow::Result<PathBuf> {
    let all = [&["--only-binary=:all:"][..], &PACKERS].concat();
    install_packages(target, python, "packers", &[&all, LOADED[0], LOADED[1]])
}

/// A folder with `kernels` for a Python of [`prepare`].
pub(crate) fn hub_kernels(target: &Path, python: &Path) -> anyhow::Result<PathBuf> {
    let all = [&["--only-binary=:all:"][..], &HUB_KERNELS].concat();
    install_packages(target, python, "hub-kernels", &[&all])
}

/// A folder of this name with packages for a Python, one uv call for each list of arguments, without dependencies.
fn install_packages(
    target: &Path,
    python: &Path,
    name: &str,
    calls: &[&[&str]],
) -> anyhow::Result<PathBuf> {
    let uv = uv(target)?;
    let home = target.join(name);
    let stamp = home.join("complete");
    let wanted = calls.concat().join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|there| there == wanted) {
        return Ok(home);
    }
    if home.exists() {
        fs::remove_dir_all(&home)?;
    }
    for words in calls {
        let mut command = Command::new(&uv);
        command.args(["pip", "install", "--quiet", "--no-cache", "--no-deps", "--python"]);
        output(command.arg(python).arg("--target").arg(&home).args(*words))?;
    }
    fs::write(&stamp, wanted)?;
    Ok(home)
}

/// Whether a commit's hash ends with an odd hexadecimal digit; true if it has no digit at its end.
fn has_odd_digit(head: &str) -> bool {
    head.trim().chars().next_back().and_then(|digit| digit.to_digit(16)).unwrap_or(1) % 2 == 1
}

impl Stack {
    /// The Python of the stack, which is built unless it exists.
    fn build(&self, uv: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
        // Only the newest transformers shares its torch with another stack.
        let newest = self.transformers == NEWEST.transformers;
        let home = folder.join(if newest {
            format!("{}-newest", self.torch)
        } else {
            self.torch.to_owned()
        });
        let (stamp, python) = (home.join("complete"), home.join("bin/python"));
        let transformers = format!("transformers=={}", self.transformers);
        let torch = format!("torch=={}", self.torch);
        let alone: Vec<&str> =
            [torch.as_str()].into_iter().chain(self.cuda.iter().copied()).collect();
        let rest: Vec<&str> = DEPENDENCIES.into_iter().chain([transformers.as_str()]).collect();
        let wanted = [&alone[..], &rest[..], &[NO_CUDA]].concat().join("\n");
        if fs::read_to_string(&stamp).is_ok_and(|there| there == wanted) {
            return Ok(python);
        }
        // uv links the environment's files to this cache, so that downloads use disk space once.
        let cache = folder.join("cache");
        let uv = |words: &[&str]| {
            let mut command = Command::new(uv);
            command.env("UV_CACHE_DIR", &cache).args(words).arg("--quiet");
            command
        };
        // Every package has wheels for these Pythons.
        output(uv(&["venv", "--clear", "--no-project", "--python", ">=3.10,<3.13"]).arg(&home))?;
        let install = || {
            uv(&["pip", "install", "--only-binary=:all:", "--python", &python.to_string_lossy()])
        };
        output(install().arg("--no-deps").args(alone))?;
        output(install().args(rest))?;
        let site = "import sysconfig; print(sysconfig.get_path('platlib'))";
        let site = output(Command::new(&python).args(["-c", site]))?;
        run(Command::new("python3").args(["-c", NO_CUDA]).arg(site.trim()))?;
        fs::remove_dir_all(&cache)?;
        fs::write(&stamp, wanted)?;
        Ok(python)
    }
}

#[cfg(test)]
mod tests {
    use super::has_odd_digit;

    #[test]
    fn last_digit_of_a_commit_selects_the_stack() {
        assert!(has_odd_digit("2221095\n") && has_odd_digit("ab3f"));
        assert!(!has_odd_digit("2221094\n") && !has_odd_digit("ab3e"));
        assert!(has_odd_digit(""));
    }
}
