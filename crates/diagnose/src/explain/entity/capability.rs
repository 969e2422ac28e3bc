//! Compute capabilities and architecture flags that a text demands or lacks.

use super::{Entity, Form, form};
use crate::gpu;
use crate::rules::PastedError;

pub(super) fn forms() -> Vec<Form> {
    vec![
        form("No supported CUDA architectures found for major versions [*]", majors),
        form("Unknown CUDA arch ({arch})", unknown_arch),
        form("Unknown CUDA Architecture Name {arch}", unknown_arch),
        form("invalid literal for int() with base 10: '{arch}'", lettered_arch),
        form("could not convert string to float: '{arch}'", lettered_arch),
        form("Minimum capability: {least}. Current capability: {here}", minimum),
        form("requires compute capability {least}", least),
        form("compute capability >= {least}", least),
        form("compute capability of at least {least}", least),
        form("only supported on devices with compute capability {least}", least),
        form("Could not find compatible {what} extension for compute capability {here}", not_built),
        form("type fp8e4nv not supported in this architecture", float8),
        form("fp8e4nv data type is not supported on CUDA arch", float8),
        form("torch._scaled_mm is only supported on CUDA devices with compute capability", float8),
        form("FlashAttention-3 only supports {what}", hopper),
        form("FlashAttention only supports Hopper GPUs or newer", hopper),
        form("FA3 is only supported on devices with compute capability", hopper),
        form("Feature '{feature}' requires .target {target}", target),
        form("Instruction '{feature}' not supported on .target '{target}'", target),
        form("not supported on .target '{target}'", target),
    ]
}

/// The GPUs here as evidence, and the lowest capability among them.
fn with_gpus(mut entity: Entity, seen: &PastedError) -> (Entity, Option<(u32, u32)>) {
    let mut lowest = None;
    for (gpu, sm) in gpu::capabilities(seen.machine()) {
        entity = entity.evidence(gpu::describe(gpu), gpu.name.source.clone());
        lowest = Some(lowest.map_or(sm, |known: (u32, u32)| known.min(sm)));
    }
    (entity, lowest)
}

const ASK: &str = "nvidia-smi --query-gpu=name,compute_cap --format=csv";

/// A compiled extension that has no code for this GPU: it was built for other architectures.
fn not_built(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let (what, here) = (seen.word("what")?, seen.word("here")?.trim_end_matches(['.', ',']));
    let dotted = match here.parse::<u32>() {
        Ok(number) if number >= 10 => format!("{}.{}", number / 10, number % 10),
        _ => here.to_owned(),
    };
    let package = crate::explain::modules::provider(what, seen.context.envs);
    let installer = seen.installer();
    let build = crate::extension::elsewhere(&package, &installer.python())
        .unwrap_or_else(|| String::from(installer.build(&[&package])));
    let variable = match package.as_str() {
        "tinycudann" => format!("export TCNN_CUDA_ARCHITECTURES={}", dotted.replace('.', "")),
        _ => format!("export TORCH_CUDA_ARCH_LIST={dotted}"),
    };
    let entity = Entity::new("compute-capability", format!("{package} for {dotted}"))
        .meaning(format!(
            "The installed {package} has no code for a GPU of compute capability {dotted}: it was compiled for other architectures, on another machine or for another GPU. \
             Build it for this one."
        ))
        .fix([variable, build])
        .package(package)
        .rank(4);
    Some(with_gpus(entity, seen).0)
}

fn majors(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let (_, rest) = seen.text.split_once("major versions [")?;
    let majors = rest.split(']').next()?;
    let flashinfer = ["TORCH_CUDA_ARCH_LIST", "FLASHINFER_CUDA_ARCH_LIST"];
    let entity = Entity::new("compute-capability", format!("major versions [{majors}]"))
        .meaning(format!(
            "The kernel exists for GPUs of compute capability major {majors} alone, and none of the GPUs here is one: the backend (often an \
             attention or MoE backend of FlashInfer) has no code for this GPU. Choose another backend; where the GPU is of that major version, \
             {} names others.",
            flashinfer.join(" or ")
        ))
        .fix([
            "vllm serve MODEL --attention-backend FLASH_ATTN  # or TRITON_ATTN; before 0.12: VLLM_ATTENTION_BACKEND=TRITON_ATTN",
            "python -m sglang.launch_server --attention-backend triton ...",
            "env | grep CUDA_ARCH_LIST",
            ASK,
        ])
        .package("flashinfer-python")
        .rank(4);
    let (entity, here) = with_gpus(entity, seen);
    let confirmed =
        here.map(|(major, _)| !majors.split(',').any(|word| word.trim() == major.to_string()));
    Some(entity.confirmed(confirmed))
}

fn unknown_arch(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let arch = seen.word("arch")?.trim_end_matches(['.', ',']).to_owned();
    let entity = Entity::new("compute-capability", format!("architecture {arch}"))
        .meaning(format!(
            "PyTorch's build helper (torch.utils.cpp_extension) does not know the architecture {arch} that TORCH_CUDA_ARCH_LIST or the GPU asks \
             for: this torch is older than the GPU, or the list has a name that is not of its form (`8.6`, `9.0a`, `12.0+PTX`)."
        ))
        .fix([
            "echo \"$TORCH_CUDA_ARCH_LIST\"",
            "export TORCH_CUDA_ARCH_LIST='9.0'  # the newest that this torch knows and the GPU runs, +PTX for newer GPUs",
            ASK,
        ])
        .package("torch")
        .rank(3);
    Some(with_gpus(entity, seen).0)
}

/// An architecture with its letter, such as `90a`, where code reads a number.
/// A number with a fraction or an exponent that a package reads as a whole one.
fn not_whole(seen: &PastedError, word: &str) -> Option<Entity> {
    let number = word.parse::<f64>().is_ok() && word.contains(['.', 'e', 'E']);
    let whole = seen.text.contains("int() with base 10") && seen.text.contains("-packages");
    (number && whole).then(|| {
        Entity::new("value", format!("{word} as a whole number"))
            .meaning(format!(
                "A package reads a whole number and got {word}: an environment variable, an option or a configuration file has it with a decimal point or an exponent. The \
                 traceback's last line names the variable or the option."
            ))
            .fix([
                "# write it as a whole number, without a point or an exponent".to_owned(),
                "# where a tool wrote it (accelerate config): a newer release of the package of the last frame".to_owned(),
            ])
            .rank(3)
    })
}

/// A value of CUDA_VISIBLE_DEVICES that a program reads as a number and that is none.
fn visible_device(word: &str) -> Option<Entity> {
    let none = word == "NoDevFiles";
    (none || word.starts_with("GPU-") || word.starts_with("MIG-")).then_some(())?;
    let entity = Entity::new("visible-devices", format!("CUDA_VISIBLE_DEVICES={word}"));
    Some(if none {
        entity
            .meaning(
                "Slurm gave the job no GPU and sets CUDA_VISIBLE_DEVICES=NoDevFiles then; the program reads the variable as a list of numbers.",
            )
            .fix(["srun --gres=gpu:1 ...  # or: #SBATCH --gres=gpu:1", "echo $CUDA_VISIBLE_DEVICES"])
            .rank(5)
    } else {
        entity
            .meaning(
                "CUDA_VISIBLE_DEVICES has the UUID of a GPU or of a MIG device, which CUDA accepts, and the program reads the variable as a list of numbers.",
            )
            .fix([
                "nvidia-smi -L  # the GPU's number",
                "export CUDA_VISIBLE_DEVICES=0  # a number; a MIG device has only its UUID",
                "# or a newer release of the package of the traceback's last frame",
            ])
            .rank(5)
    })
}

fn lettered_arch(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let arch = seen.word("arch")?.trim_matches('\'');
    if let Some(entity) = visible_device(arch).or_else(|| not_whole(seen, arch)) {
        return Some(entity);
    }
    let number = arch.strip_suffix(['a', 'f'])?;
    let about_gpus =
        || ["arch", "capability", "sm_", "cuda"].iter().any(|word| seen.text.contains(word));
    // `10.0a` may be split at its dot: `0a`.
    let is_arch = match number.split_once('.') {
        Some((major, minor)) => is_digits(major, 2) && is_digits(minor, 1),
        None => is_digits(number, 3) && (number.len() > 1 || about_gpus()),
    };
    is_arch.then_some(())?;
    let mut entity = Entity::new("compute-capability", format!("architecture {arch}"))
        .meaning(format!(
            "The code that raised it reads the GPU architecture {arch} as a number and does not know its letter: `a` is code for that generation \
             alone, `f` for its family. It is older than architectures with a letter. The name is from TORCH_CUDA_ARCH_LIST or a variable like it; \
             if none is set, from the architectures that the installed torch was built for."
        ))
        .fix([
            "env | grep -E 'CUDA_?ARCH'; {python} -c 'import torch; print(torch.cuda.get_arch_list())'"
                .replace("{python}", &seen.installer().python()),
            "export TORCH_CUDA_ARCH_LIST=9.0  # the GPU's compute capability, without a letter".to_owned(),
            ASK.to_owned(),
            "# or a newer release of the package of the traceback's last frame".to_owned(),
        ])
        .rank(4);
    if seen.text.contains("cpp_extension") {
        entity = entity.package("torch");
    }
    Some(with_gpus(entity, seen).0)
}

fn is_digits(text: &str, most: usize) -> bool {
    (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `80`, `8.0` and `sm_80` as major and minor number.
fn capability(word: &str) -> Option<(u32, u32)> {
    let digits = word.trim_start_matches("sm_").trim_matches(|c: char| !c.is_ascii_digit());
    match digits.split_once('.') {
        Some((major, minor)) => {
            let minor: String = minor.chars().take_while(char::is_ascii_digit).collect();
            Some((major.parse().ok()?, minor.parse().ok()?))
        }
        None => {
            let number: u32 = digits.parse().ok()?;
            Some(if number >= 20 { (number / 10, number % 10) } else { (number, 0) })
        }
    }
}

fn minimum(seen: &PastedError, _: &'static str) -> Option<Entity> {
    needs(seen, seen.word("least")?)
}

fn least(seen: &PastedError, _: &'static str) -> Option<Entity> {
    needs(seen, seen.word("least")?)
}

fn needs(seen: &PastedError, word: &str) -> Option<Entity> {
    let wanted = capability(word)?;
    let shown = format!("{}.{}", wanted.0, wanted.1);
    let entity = Entity::new("compute-capability", format!("compute capability {shown}"))
        .meaning(format!(
            "The kernel needs a GPU of compute capability {shown} or newer. On an older GPU choose another backend, another quantization or a \
             data type that the GPU has."
        ))
        .fix([ASK])
        .rank(3);
    let (entity, here) = with_gpus(entity, seen);
    Some(entity.confirmed(here.map(|here| here < wanted)))
}

fn float8(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let entity = Entity::new("compute-capability", "float8 (e4m3)")
        .meaning(
            "The GPU has no float8 e4m3 instructions: they begin with compute capability 8.9 (Ada) and 9.0 (Hopper). On Ampere and older GPUs \
             use weights of another type (bf16, int8, or int4 with AWQ or GPTQ), or an engine that multiplies float8 weights as bf16 (Marlin).",
        )
        .fix([ASK])
        .rank(4);
    let (entity, here) = with_gpus(entity, seen);
    Some(entity.confirmed(here.map(|here| here < (8, 9))))
}

fn hopper(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let entity = Entity::new("compute-capability", "FlashAttention 3")
        .meaning(
            "FlashAttention 3 has kernels for Hopper (compute capability 9.0), and in part for 8.x. On another GPU use FlashAttention 2, FlashInfer, \
             Triton's attention or PyTorch's SDPA.",
        )
        .fix([
            "vllm serve MODEL --attention-backend FLASH_ATTN  # with VLLM_FLASH_ATTN_VERSION=2",
            "python -m sglang.launch_server --attention-backend flashinfer ...",
            ASK,
        ])
        .rank(3);
    let (entity, here) = with_gpus(entity, seen);
    Some(entity.confirmed(here.map(|here| here.0 != 9)))
}

fn target(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let target = seen.word("target")?;
    let feature = seen.word("feature").unwrap_or("an instruction");
    Some(
        Entity::new("compute-capability", target)
            .meaning(format!(
                "ptxas compiles for {target}, which lacks {feature}. Architecture-specific instructions (wgmma, tcgen05, setmaxnreg) need the \
                 architecture with its letter, such as sm_90a or sm_100a, and exist on that generation alone."
            ))
            .fix(["echo \"$TORCH_CUDA_ARCH_LIST\"  # 9.0a instead of 9.0, 10.0a instead of 10.0", ASK])
            .rank(3),
    )
}
