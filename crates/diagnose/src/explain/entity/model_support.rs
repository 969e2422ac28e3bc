//! Models that the installed library does not know, and devices that an engine does not find.

use super::{Entity, Form, form};
use crate::explain::cause::Cause;
use crate::explain::modules::installed;
use crate::gpu;
use crate::rules::PastedError;

pub(super) fn forms() -> Vec<Form> {
    vec![
        form(
            "has model type '{model}' but Transformers does not recognize this architecture",
            transformers,
        ),
        form("model type '{model}' but Transformers does not recognize", transformers),
        form("The checkpoint you are trying to load has model type '{model}'", transformers),
        form("Unrecognized configuration class <class '{model}'>", transformers),
        form("Unrecognized model in {model}. Should have a 'model_type' key", no_model_type),
        form("Model architectures ['{model}'] are not supported for now", engine),
        form("Model architectures ['{model}'", engine),
        form("Unsupported architectures: {model}", engine),
        form("has no SGLang implementation", engine),
        form("requires you to execute the configuration file in that repo", trust),
        form("please pass the argument 'trust_remote_code=True'", trust),
        form("Failed to infer device type", device),
        form("torch.cuda.is_available() returns False", no_cuda),
        form("torch.cuda.is_available() returned False", no_cuda),
        form("torch.cuda.is_available() is False", no_cuda),
        form("torch.cuda.is_available() = False", no_cuda),
        form("torch.cuda.is_available() == False", no_cuda),
        form("torch.cuda.is_available() -> False", no_cuda),
        form("torch.cuda.is_available(): False", no_cuda),
        form("torch.cuda.is_available() False", no_cuda),
        form("torch.cuda.is_available())' False", no_cuda),
        form("torch.cuda.is_available()) False", no_cuda),
        form("Device string must not be empty", device),
        form("No accelerator (CUDA, XPU, HPU, NPU, MUSA) is available", device),
        form("unknown model architecture: '{model}'", gguf),
        form("unknown pre-tokenizer type: '{model}'", gguf),
    ]
}

fn upgrade(seen: &PastedError, package: &str, entity: Entity) -> Entity {
    let entity = match installed(seen, package) {
        Some((_, dist)) => {
            entity.evidence(format!("{} {}", dist.name, dist.version), dist.path.clone())
        }
        None => entity,
    };
    entity
        .package(package)
        .fix([format!("{} --upgrade", seen.installer().install(&[package.to_owned()], None))])
}

fn transformers(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let model = seen.word("model")?;
    let entity = Entity::new("model", model)
        .meaning(format!("The installed transformers has no model type {model}."))
        .rank(4);
    let mut entity = upgrade(seen, "transformers", entity);
    let newest = std::mem::take(&mut entity.fix);
    let python = seen.installer().python();
    Some(entity.causes([
        Cause::new("The model is newer than the library, or than the engine that pins it (vllm, sglang).")
            .check([format!("{python} -m pip show transformers | grep Version; grep transformers_version MODEL/config.json")])
            .fix(newest)
            .fix(["# not released yet: pip install git+https://github.com/huggingface/transformers; vllm, sglang: a newer release of the engine"]),
        Cause::new("The model's code is in its own repository and is not allowed to run, or another package registers the type.")
            .check(["grep -A4 auto_map MODEL/config.json"])
            .fix(["# trust_remote_code=True after reading the code; or import the package that the model's page names"]),
        Cause::new("config.json names a type that is no transformers model: an adapter, a component of a pipeline, a renamed type.")
            .check(["grep -E 'model_type|_class_name|peft_type' MODEL/*.json"]),
    ]))
}

fn no_model_type(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let model = seen.word("model")?;
    Some(
        Entity::new("model", model)
            .meaning("The folder's config.json has no model_type that transformers knows: it is no transformers checkpoint (a GGUF file, an adapter, a diffusers pipeline), or an incomplete download.")
            .fix(["ls -l MODEL; head -c 400 MODEL/config.json"])
            .rank(3),
    )
}

fn engine(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let model = seen.word("model").unwrap_or("this model");
    let package = if seen.text.contains("SGLang") || seen.text.contains("sglang") {
        "sglang"
    } else {
        "vllm"
    };
    let entity = Entity::new("model", model)
        .meaning(format!("The installed {package} has no implementation of {model}."))
        .rank(3);
    let mut entity = upgrade(seen, package, entity);
    let newest = std::mem::take(&mut entity.fix);
    Some(entity.causes([
        Cause::new("The model is newer than the engine.")
            .check([format!("{} -m pip index versions {package}; # the engine's page of supported models names the first release", seen.installer().python())])
            .fix(newest),
        Cause::new("The engine does not support this architecture, or its name in config.json was changed.")
            .check(["grep -A2 architectures MODEL/config.json"])
            .fix(["# vLLM: --model-impl transformers; or another engine"]),
        Cause::new("The engine knows it, and the import of its module failed: a dependency that is absent or of another release.")
            .check(["# an earlier warning or error of the log names the import"]),
    ]))
}

fn trust(_: &PastedError, _: &'static str) -> Option<Entity> {
    Some(
        Entity::new("model", "trust_remote_code")
            .meaning("The model's code is in its repository and is not run unless you say so. Read it first: it runs with your rights.")
            .fix(["vllm serve MODEL --trust-remote-code  # transformers: trust_remote_code=True"])
            .rank(3),
    )
}

fn gguf(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let model = seen.word("model")?;
    Some(
        Entity::new("model", model)
            .meaning(format!("The GGUF file is of the architecture {model}, which this llama.cpp (or the program around it) is too old to know."))
            .fix(["# update llama.cpp, ollama or llama-cpp-python"])
            .rank(3),
    )
}

/// vLLM found no platform: no GPU that NVML lists, a torch without CUDA, or a vllm of another platform.
/// torch sees no GPU: which of the causes, by the facts of this machine.
fn no_cuda(seen: &PastedError, _: &'static str) -> Option<Entity> {
    // Programs print the condition inside of other messages, which say more.
    (!seen.text.contains("Attempting to deserialize")).then_some(())?;
    let machine = seen.machine();
    let installer = seen.installer();
    let python = installer.python();
    let torch = seen.env().and_then(|env| env.torch.as_ref());
    let cpu = torch.map(|torch| torch.cuda.is_none());
    let gpus = gpu::nvidia(machine).count();
    let mut causes = vec![
        Cause::new("The installed torch is a build for the CPU: its version ends in +cpu, or torch.version.cuda is None.")
            .check([format!("{python} -c 'import torch; print(torch.__version__, torch.version.cuda)'")])
            .fix(["firstlight plan torch  # the build for this driver and GPU"]),
        Cause::new("No driver answers: it is not installed, its module is not loaded, or the GPU is not visible to the machine.")
            .check(["nvidia-smi"])
            .fix(["firstlight doctor"]),
        Cause::new("The process is in a container or WSL without the GPU.")
            .check(["ls /dev/nvidia* /dev/dxg 2>/dev/null; ls /.dockerenv 2>/dev/null"])
            .fix(["docker run --gpus all ..."]),
        Cause::new("The driver is older than the CUDA of torch; `nvidia-smi` works then, and a warning of torch names the driver's version.")
            .check([format!("nvidia-smi | grep 'CUDA Version'; {python} -W always -c 'import torch; torch.cuda.init()'")])
            .fix(["firstlight plan torch  # the build for this driver"]),
        Cause::new("CUDA_VISIBLE_DEVICES hides the GPUs.")
            .check(["echo \"[$CUDA_VISIBLE_DEVICES]\""])
            .fix(["unset CUDA_VISIBLE_DEVICES"]),
    ];
    let first = match cpu {
        Some(true) => Some(0),
        _ if gpus == 0 && machine.driver.is_none() && torch.is_some() => Some(1),
        _ => None,
    };
    if let Some(first) = first {
        causes[first].confirmed_here = Some(true);
        causes[..=first].rotate_right(1);
    }
    let mut entity = Entity::new("device", "torch.cuda.is_available() is False")
        .meaning(
            "torch finds no GPU that it can use. It reports no error then: `torch.cuda.init()` prints the reason.",
        )
        .causes(causes)
        .fix([format!("{python} -c 'import torch; torch.cuda.init()'"), "firstlight doctor".to_owned()])
        .package("torch")
        .rank(3);
    if let Some(torch) = torch {
        let cuda = torch.cuda.as_deref().map_or("no CUDA".into(), |cuda| format!("CUDA {cuda}"));
        entity =
            entity.evidence(format!("torch {} with {cuda}", torch.version), torch.source.clone());
    }
    Some(entity)
}

fn device(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let machine = seen.machine();
    let torch = seen.env().and_then(|env| env.torch.as_ref());
    let gpus = gpu::nvidia(machine).count();
    let nvml = machine.driver.as_ref().and_then(|driver| driver.nvml_error.as_ref());
    let cpu = torch.is_some_and(|torch| torch.cuda.is_none());
    let (here, confirmed) = if let Some(error) = nvml {
        (format!(" Here NVML answers: {}.", error.value), Some(true))
    } else if cpu {
        (" Here torch is a CPU build.".to_owned(), Some(true))
    } else if gpus == 0 {
        (" On this machine no NVIDIA GPU is visible.".to_owned(), Some(true))
    } else {
        (
            format!(
                " On this machine {gpus} NVIDIA GPUs are visible and torch has CUDA: the cause is elsewhere, or the text is of another machine."
            ),
            Some(false),
        )
    };
    let mut entity = Entity::new("device", "device type of the engine")
        .meaning(format!(
            "vLLM asks NVML for GPUs when it starts and found none: no GPU is visible (a container without GPUs, CUDA_VISIBLE_DEVICES, no driver), NVML fails (a driver that was \
             updated without a reboot), the installed torch is a CPU build, or the package pynvml hides nvidia-ml-py.{here}"
        ))
        .fix([
            "nvidia-smi -L".to_owned(),
            format!("{} -c 'import torch; print(torch.__version__, torch.version.cuda, torch.cuda.is_available())'", seen.installer().python()),
            "VLLM_LOGGING_LEVEL=DEBUG vllm serve MODEL 2>&1 | grep -i platform".to_owned(),
            "firstlight doctor".to_owned(),
        ])
        .confirmed(confirmed)
        .package("vllm")
        .rank(4);
    if let Some(torch) = torch {
        entity = entity
            .evidence(
                format!(
                    "torch {} with {}",
                    torch.version,
                    torch.cuda.as_deref().map_or("no CUDA".into(), |cuda| format!("CUDA {cuda}"))
                ),
                torch.source.clone(),
            )
            .package("torch");
    }
    for gpu in gpu::nvidia(machine) {
        entity = entity.evidence(gpu::describe(gpu), gpu.name.source.clone());
    }
    if let Some(error) = nvml {
        entity = entity.evidence(error.value.clone(), error.source.clone());
    }
    Some(entity)
}
