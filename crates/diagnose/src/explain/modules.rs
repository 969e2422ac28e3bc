//! Import names and the distributions that provide them.

use crate::rules::{PastedError, module_of};
use crate::torch_build::live_dist;
use facts::{Dist, PyEnv};
use knowledge::Version;

/// Import names whose distribution has another name. Read on 2026-11-28: the top-level names of PyPI's wheels of apache-tvm-ffi,
/// cupy-cuda12x, faiss-cpu, flash-linear-attention, flashinfer-python, hydra-core, nvidia-modelopt, onnxruntime-gpu, opencv-python,
/// protobuf, PyOpenGL, pyserial, python-dotenv, pytorch-lightning, sgl-kernel, torch-geometric, transformer-engine and vllm, and
/// of the source distribution of nvidia-ml-py3; the extensions and packages that setup.py names in NVIDIA/apex, Dao-AILab/causal-conv1d,
/// Dao-AILab/flash-attention (hopper; a copy of the main one), openai/whisper, state-spaces/mamba and NVIDIA/TransformerEngine (pytorch),
/// and pyproject.toml in abetlen/llama-cpp-python. cuda-python's wheel is empty and requires the distributions that have `cuda`.
/// tensorrt_llm was not read: the name is the distribution's own.
const PROVIDERS: [(&str, &str); 34] = [
    ("amp_C", "apex"),
    ("apex_C", "apex"),
    ("causal_conv1d_cuda", "causal-conv1d"),
    ("cuda", "cuda-python"),
    ("cv2", "opencv-python"),
    ("cupy", "cupy-cuda12x"),
    ("dotenv", "python-dotenv"),
    ("faiss", "faiss-cpu"),
    ("fla", "flash-linear-attention"),
    ("flash_attn_2_cuda", "flash-attn"),
    ("flash_attn_3_cuda", "flash-attn-3"),
    ("flash_attn_interface", "flash-attn-3"),
    ("flashinfer", "flashinfer-python"),
    ("fused_layer_norm_cuda", "apex"),
    ("google", "protobuf"),
    ("hydra", "hydra-core"),
    ("llama_cpp", "llama-cpp-python"),
    ("modelopt", "nvidia-modelopt"),
    ("nvidia_smi", "nvidia-ml-py3"),
    ("onnxruntime", "onnxruntime-gpu"),
    ("OpenGL", "PyOpenGL"),
    ("pytorch_lightning", "pytorch-lightning"),
    ("selective_scan_cuda", "mamba-ssm"),
    ("serial", "pyserial"),
    ("sgl_kernel", "sgl-kernel"),
    ("tensorrt_llm", "tensorrt-llm"),
    ("torch_geometric", "torch-geometric"),
    ("transformer_engine", "transformer-engine"),
    ("transformer_engine_torch", "transformer-engine-torch"),
    ("tvm_ffi", "apache-tvm-ffi"),
    ("_torch_sox", "torchaudio"),
    ("_vllm_fa2_C", "vllm"),
    ("_vllm_fa3_C", "vllm"),
    ("whisper", "openai-whisper"),
];

/// Distributions that install one part of another distribution's import package, and that part.
pub(crate) const PARTS: [(&str, &str, &str); 1] =
    [("flash-attn-4", "flash_attn", "flash_attn.cute")];

/// The distribution that provides an import name, as PEP 503 normalises names: an installed one, else the one in the
/// table, else the import name itself.
pub(crate) fn provider(module: &str, envs: &[PyEnv]) -> String {
    let top = module.split('.').next().unwrap_or(module);
    if envs.iter().any(|env| live_dist(env, top).is_some()) {
        return Dist::normalise(top);
    }
    let known = PROVIDERS.iter().find(|(name, _)| *name == top).map(|(_, dist)| *dist);
    // A module with a leading underscore is part of a package whose name has none.
    let bare = top.trim_start_matches('_');
    Dist::normalise(known.or_else(|| module_of(top)).unwrap_or(if bare.is_empty() {
        top
    } else {
        bare
    }))
}

/// Classes that texts name without their module, by the prefix or the suffix of the name, and their distribution. The
/// names are from the libraries' documentation; the first match counts.
const CLASSES: [(&str, &str, &str); 40] = [
    ("PeftAdapterMixin", "", "transformers"),
    ("SFT", "Trainer", "trl"),
    ("DPO", "Trainer", "trl"),
    ("GRPO", "Trainer", "trl"),
    ("PPO", "Trainer", "trl"),
    ("ORPO", "Trainer", "trl"),
    ("KTO", "Trainer", "trl"),
    ("Reward", "Trainer", "trl"),
    ("SFT", "Config", "trl"),
    ("DPO", "Config", "trl"),
    ("GRPO", "Config", "trl"),
    ("PPO", "Config", "trl"),
    ("Lora", "Config", "peft"),
    ("Lora", "Model", "peft"),
    ("Peft", "", "peft"),
    ("Accelerator", "", "accelerate"),
    ("DeepSpeed", "", "deepspeed"),
    ("UNet", "Model", "diffusers"),
    ("Autoencoder", "", "diffusers"),
    ("", "DiffusionPipeline", "diffusers"),
    ("", "Scheduler", "diffusers"),
    ("", "EngineArgs", "vllm"),
    ("ServerArgs", "", "sglang"),
    ("Scheduler", "Output", "vllm"),
    ("FastLanguageModel", "", "unsloth"),
    ("FastModel", "", "unsloth"),
    ("BitsAndBytes", "", "transformers"),
    ("", "ForCausalLM", "transformers"),
    ("", "ForConditionalGeneration", "transformers"),
    ("", "ForSequenceClassification", "transformers"),
    ("", "PreTrainedModel", "transformers"),
    ("", "OutputWithPast", "transformers"),
    ("", "TokenizerFast", "transformers"),
    ("", "Tokenizer", "transformers"),
    ("", "ImageProcessor", "transformers"),
    ("", "TrainingArguments", "transformers"),
    ("", "GenerationConfig", "transformers"),
    ("", "DecoderLayer", "transformers"),
    ("", "RotaryEmbedding", "transformers"),
    ("", "Cache", "transformers"),
];

/// The distribution of a class that a text names without its module.
pub(super) fn of_class(class: &str) -> Option<&'static str> {
    let fits = |begin: &str, end: &str| {
        class.len() > begin.len().max(end.len()).max(4)
            && class.starts_with(begin)
            && class.ends_with(end)
            || !begin.is_empty() && class == begin
    };
    CLASSES.iter().find(|(begin, end, _)| fits(begin, end)).map(|(.., dist)| *dist)
}

/// Whether the tables have a name as an import name or a distribution of GPU stacks.
pub(super) fn is_known(module: &str) -> bool {
    let top = module.split('.').next().unwrap_or(module);
    let dist = Dist::normalise(top);
    PROVIDERS.iter().any(|(name, provider)| *name == top || *provider == dist)
        || module_of(top).is_some()
        || knowledge::packages::package(&dist).is_some()
        || STACK.contains(&dist.as_str())
}

/// Whether a requirement names a distribution that is in the tables or installed.
pub(super) fn is_distribution(seen: &PastedError, requirement: &str) -> bool {
    let letters = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let name = requirement.trim_start_matches(['\'', '"', '-']);
    let name = Dist::normalise(&name[..name.find(|c: char| !letters(c)).unwrap_or(name.len())]);
    is_known(&name)
        || installed(seen, &name).is_some()
        || knowledge::pypi::releases(&name).next().is_some()
        || knowledge::messages::messages().iter().any(|message| message.installs(&name))
}

/// Whether a folder of this name in a path is a checkout or the package of a known library.
pub(super) fn is_library(folder: &str) -> bool {
    is_known(folder) && !PLAIN_FOLDERS.contains(&folder)
}

/// Import names that are also names of other folders.
const PLAIN_FOLDERS: [&str; 10] = [
    "cuda",
    "datasets",
    "google",
    "hydra",
    "lightning",
    "numpy",
    "pandas",
    "ray",
    "serial",
    "whisper",
];

/// Packages of GPU stacks without a row in the tables.
const STACK: [&str; 40] = [
    "accelerate",
    "auto-gptq",
    "autoawq",
    "bitsandbytes",
    "datasets",
    "deepspeed",
    "detectron2",
    "diffusers",
    "einops",
    "gptqmodel",
    "huggingface-hub",
    "jax",
    "lightning",
    "lmdeploy",
    "mamba-ssm",
    "megatron-core",
    "mmcv",
    "numba",
    "numpy",
    "pandas",
    "peft",
    "pytorch3d",
    "ray",
    "safetensors",
    "scipy",
    "sentencepiece",
    "sglang",
    "tensorflow",
    "timm",
    "tinycudann",
    "tokenizers",
    "torch",
    "torchao",
    "torchcodec",
    "transformers",
    "triton",
    "trl",
    "unsloth",
    "unsloth-zoo",
    "unsloth-compiled-cache",
];

/// An installed distribution and its environment.
pub(super) fn installed<'a>(seen: &PastedError<'a>, name: &str) -> Option<(&'a PyEnv, &'a Dist)> {
    seen.context.envs.iter().find_map(|env| Some((env, live_dist(env, name)?)))
}

/// Packages whose installed files a text names, in its order: the frames of a traceback.
pub(super) fn frames(text: &str) -> Vec<&str> {
    let mut found: Vec<&str> = Vec::new();
    for mark in ["site-packages/", "dist-packages/"] {
        for (at, _) in text.match_indices(mark) {
            let rest = &text[at + mark.len()..];
            let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-'));
            let top = &rest[..end.unwrap_or(rest.len())];
            let folder = rest[top.len()..].starts_with('/');
            let module = rest[top.len()..].starts_with('.');
            let info =
                rest.split(['/', ' ']).next().is_some_and(|part| part.contains(".dist-info"));
            if !top.is_empty() && (folder || module) && !info {
                found.push(top);
            }
        }
    }
    found
}

/// An unmet requirement of an installed package on another one: the package with its version, and the version that it
/// allows.
pub(super) fn requirement(seen: &PastedError, name: &str) -> Option<(String, String)> {
    let name = Dist::normalise(name);
    for env in seen.context.envs {
        let wants = crate::dist_requirements::applicable_requirements(seen.machine(), env);
        let installed =
            live_dist(env, &name).and_then(|dist| knowledge::Version::parse(&dist.version));
        for want in wants.into_iter().filter(|want| want.wanted.name == name) {
            let unmet =
                installed.as_ref().is_none_or(|version| want.wanted.allows(version) == Some(false));
            if unmet {
                let constraint = want.wanted.constraint();
                return Some((format!("{} {}", want.dist.name, want.dist.version), constraint));
            }
        }
    }
    None
}

/// The version of a package in a text: `torch 2.8.0`, `torch==2.8.0`, `PyTorch 2.8.0`.
pub(super) fn version_in(text: &str, package: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    for (at, _) in lower.match_indices(package) {
        let rest =
            lower[at + package.len()..].trim_start_matches(['=', ' ', '-', 'v', ':', '(', '\'']);
        let version: String =
            rest.chars().take_while(|c| c.is_ascii_alphanumeric() || ".+".contains(*c)).collect();
        let whole = at == 0
            || !lower.as_bytes()[at - 1].is_ascii_alphanumeric()
            || lower[..at].ends_with("py");
        if whole && version.contains('.') && Version::parse(&version).is_some() {
            return Some(version.trim_end_matches('.').to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{frames, provider, version_in};
    use crate::extension::elsewhere;

    #[test]
    fn import_names_map_to_distributions() {
        for (module, dist) in [
            ("flash_attn_2_cuda", "flash-attn"),
            ("flashinfer.decode", "flashinfer-python"),
            ("cv2", "opencv-python"),
            ("PIL.Image", "pillow"),
            ("yaml", "pyyaml"),
            ("torch_geometric", "torch-geometric"),
            ("nvidia_smi", "nvidia-ml-py3"),
            ("transformer_engine_torch", "transformer-engine-torch"),
            ("triton.compiler.compiler", "triton"),
        ] {
            assert_eq!(provider(module, &[]), dist, "{module}");
        }
    }

    #[test]
    fn distributions_that_pypi_lacks_have_a_command() {
        for (module, words) in [
            ("flash_attn_3_cuda", "flash-attention/hopper"),
            ("amp_C", "NVIDIA/apex"),
            ("detectron2", "facebookresearch/detectron2"),
        ] {
            let command = elsewhere(&provider(module, &[]), "python");
            assert!(
                command.as_ref().is_some_and(|command| command.contains(words)),
                "{module}: {command:?}"
            );
        }
        assert_eq!(elsewhere(&provider("flash_attn_2_cuda", &[]), "python"), None);
    }

    #[test]
    fn classes_map_to_their_distribution() {
        for (class, dist) in [
            ("SFTTrainer", Some("trl")),
            ("LoraConfig", Some("peft")),
            ("Qwen2TokenizerFast", Some("transformers")),
            ("DynamicCache", Some("transformers")),
            ("LlamaForCausalLM", Some("transformers")),
            ("AsyncEngineArgs", Some("vllm")),
            ("Namespace", None),
            ("NoneType", None),
            ("dict", None),
        ] {
            assert_eq!(super::of_class(class), dist, "{class}");
        }
    }

    #[test]
    fn frames_are_the_packages_of_installed_files() {
        let text = "File \"/v/lib/python3.12/site-packages/mamba_ssm/ops/x.py\", line 3 \
                    /v/lib/python3.12/site-packages/causal_conv1d_cuda.cpython-312-x86_64-linux-gnu.so \
                    /v/lib/python3.12/site-packages/torch-2.9.0.dist-info/METADATA";
        assert_eq!(frames(text), ["mamba_ssm", "causal_conv1d_cuda"]);
    }

    #[test]
    fn versions_are_read_after_names() {
        for (text, package, expect) in [
            ("torch 2.8.0 with triton 3.5.0", "triton", Some("3.5.0")),
            ("torch==2.8.0+cu128", "torch", Some("2.8.0+cu128")),
            ("(PyTorch 2.5.1)", "torch", Some("2.5.1")),
            ("torchvision 0.24.0", "torch", None),
            ("triton.compiler.compiler", "triton", None),
        ] {
            assert_eq!(version_in(text, package).as_deref(), expect, "{text}");
        }
    }
}
