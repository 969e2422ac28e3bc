//! Packages that are compiled against one torch: which one an error names, and how to install the build that fits.

use crate::gpu;
use crate::pasted_error::PastedError;
use crate::remedy::Installer;
use crate::torch_build::installed;
use facts::{Machine, Platform, PyEnv, RemedyStep};
use knowledge::{dotted, torch_series};

/// A package that is compiled against one torch.
pub(crate) struct Extension {
    /// The distribution.
    pub(crate) package: &'static str,
    /// Substrings of the paths of its compiled files.
    files: &'static [&'static str],
    /// The variable that makes its setup ignore the prebuilt wheel, if its setup looks for one.
    pub(crate) force: Option<&'static str>,
}

const fn row(
    package: &'static str,
    files: &'static [&'static str],
    force: Option<&'static str>,
) -> Extension {
    Extension { package, files, force }
}

/// Packages that errors name, by their compiled files.
pub(crate) const EXTENSIONS: &[Extension] = &[
    row("flash-attn", &["flash_attn_2_cuda", "flash_attn"], Some("FLASH_ATTENTION_FORCE_BUILD")),
    row(
        "causal-conv1d",
        &["causal_conv1d_cuda", "causal_conv1d"],
        Some("CAUSAL_CONV1D_FORCE_BUILD"),
    ),
    row("mamba-ssm", &["selective_scan_cuda", "mamba_ssm"], Some("MAMBA_FORCE_BUILD")),
    row("vllm", &["vllm/_C", "vllm/_moe_C", "vllm_flash_attn"], None),
    row("xformers", &["xformers/_C", "xformers"], None),
    row("torchvision", &["torchvision/_C", "torchvision/image"], None),
    row("torchaudio", &["libtorchaudio", "torchaudio/lib"], None),
    row("flashinfer-python", &["flashinfer"], None),
    row("transformer-engine", &["transformer_engine"], None),
    row("deepspeed", &["deepspeed"], None),
    row("apex", &["amp_C", "fused_layer_norm_cuda", "apex_C"], None),
    row("ffpa-attn", &["ffpa_attn", "pyffpa"], None),
    row("sageattention", &["sageattention", "_qattn"], None),
];

/// Packages that PyPI has only as wheels: a build from source finds no distribution. Source: a dry run of each with
/// `--no-binary`, 2026-11-22.
const WHEELS_ONLY: [&str; 12] = [
    "fbgemm-gpu",
    "jaxlib",
    "onnxruntime",
    "onnxruntime-gpu",
    "open3d",
    "sgl-kernel",
    "tensorflow",
    "torch",
    "torchaudio",
    "torchtext",
    "torchvision",
    "transformer-engine-cu12",
];

/// Distributions that PyPI does not have, or that are another project there, and the command that installs them. PyPI was read on 2026-11-28 and 2026-11-30: it has no flash-attn-3, detectron2, tinycudann or
/// nvdiffrast, no pytorch3d for a torch after 1.6, and its apex is a toolkit for Pyramid. The commands: hopper/setup.py of
/// Dao-AILab/flash-attention (PACKAGE_NAME is flash_attn_3), README.md of NVIDIA/apex, INSTALL.md of
/// facebookresearch/detectron2 and facebookresearch/pytorch3d, README.md of NVlabs/tiny-cuda-nn and the documentation of
/// NVlabs/nvdiffrast.
const ELSEWHERE: [(&str, &str); 6] = [
    (
        "apex",
        "git clone https://github.com/NVIDIA/apex && cd apex && APEX_CPP_EXT=1 APEX_CUDA_EXT=1 pip install --no-build-isolation .",
    ),
    (
        "detectron2",
        "pip install --force-reinstall --no-deps --no-cache-dir --no-build-isolation git+https://github.com/facebookresearch/detectron2.git",
    ),
    (
        "flash-attn-3",
        "git clone https://github.com/Dao-AILab/flash-attention && cd flash-attention/hopper && python setup.py install",
    ),
    (
        "nvdiffrast",
        "pip install --force-reinstall --no-deps --no-cache-dir --no-build-isolation git+https://github.com/NVlabs/nvdiffrast.git",
    ),
    (
        "pytorch3d",
        "pip install --force-reinstall --no-deps --no-cache-dir --no-build-isolation git+https://github.com/facebookresearch/pytorch3d.git@stable",
    ),
    (
        "tinycudann",
        "pip install --force-reinstall --no-deps --no-cache-dir --no-build-isolation 'git+https://github.com/NVlabs/tiny-cuda-nn/#subdirectory=bindings/torch'",
    ),
];

/// The command that installs a distribution that PyPI does not have under its name, with the interpreter `python`.
pub(crate) fn elsewhere(dist: &str, python: &str) -> Option<String> {
    let (_, command) = ELSEWHERE.iter().find(|(name, _)| *name == dist)?;
    Some(match command.starts_with("pip ") {
        true => format!("{python} -m {command}"),
        false => (*command).to_owned(),
    })
}

/// Packages that pin one torch in each release: the Requires-Dist of their wheels on PyPI, read on 2026-11-28.
const PINS_TORCH: [&str; 4] = ["vllm", "xformers", "torchvision", "torchaudio"];

/// Whether PyPI has a source distribution of a package.
pub(crate) fn has_source(name: &str) -> bool {
    !WHEELS_ONLY.contains(&name) && !name.starts_with("nvidia-") && name != "triton"
}

impl PastedError<'_> {
    /// The extension that the error names by a compiled file or a package.
    pub(crate) fn extension(&self) -> Option<&'static Extension> {
        EXTENSIONS.iter().find(|row| row.files.iter().any(|file| self.text.contains(file)))
    }

    /// The package that owns the compiled file in the text: from RECORD if the file is installed here, else from its
    /// folder in site-packages.
    fn owner_of_file(&self) -> Option<String> {
        let word = self
            .text
            .split([' ', '\''])
            .find(|word| word.contains("-packages/") && word.contains(".so"))?;
        let (_, inside) = word.trim_end_matches([':', ',']).split_once("-packages/")?;
        let files = self.context.envs.iter().flat_map(|env| &env.native_files);
        let listed =
            files.filter(|file| file.path.ends_with(inside)).find_map(|file| file.dist.clone());
        let top = inside.split(['/', '.']).next().filter(|top| !top.is_empty())?;
        Some(listed.unwrap_or_else(|| crate::explain::provider(top, self.context.envs)))
    }

    /// Steps that install an extension built for the torch here: the label of a published wheel, then the build.
    pub(crate) fn fitting_extension(&self) -> Vec<RemedyStep> {
        let known = self.extension();
        let owner = self.owner_of_file();
        let known = known.filter(|row| owner.as_deref().is_none_or(|owner| owner == row.package));
        let package = known.map_or(owner.as_deref().unwrap_or("flash-attn"), |row| row.package);
        let mut lines = Vec::new();
        if known.is_none() && owner.is_none() && !self.text.is_empty() {
            let label = self.env().and_then(|env| wheel_label(self.machine(), env));
            let label = label.map_or(String::new(), |label| format!(" (its name has {label})"));
            return vec![
                format!(
                    "# the package that has the .so file: its wheel for this torch{label}, or build it here with --no-build-isolation"
                )
                .into(),
            ];
        }
        if let Some(label) = self.env().and_then(|env| wheel_label(self.machine(), env)) {
            lines.push(
                format!(
                    "# a published wheel fits only when its name has {label}; else build it here:"
                )
                .into(),
            );
        }
        if PINS_TORCH.contains(&package) {
            let installer = self.installer();
            lines.insert(
                0,
                format!(
                    "# each release of {package} requires one torch; install it again together with that torch, or the release \
                     that requires the installed one:"
                )
                .into(),
            );
            lines.push(RemedyStep::Inspect {
                command: format!(
                    "{} -m pip show {package} torch | grep -E '^(Name|Version|Requires)'; {0} -m pip index versions {package}",
                    installer.python()
                ),
            });
            lines.push(installer.install(&[package.to_owned()], None).upgraded());
            return lines;
        }
        match has_source(package) {
            true => {
                lines.extend(self.installer().stand_in(package).map(RemedyStep::from));
                lines.push(self.build_extension(package, known.and_then(|row| row.force)));
            }
            false => lines.extend(wheel_for_torch(&self.installer(), self.env(), package)),
        }
        lines
    }

    fn build_extension(&self, package: &str, force: Option<&str>) -> RemedyStep {
        build_command(self.machine(), &self.installer(), package, force)
    }
}

/// Whether PyPI has a package's compiled code only as source, so that a build for another Python or processor is
/// compiled here.
pub(crate) fn is_compiled_here(name: &str) -> bool {
    EXTENSIONS.iter().any(|row| row.package == name && row.force.is_some())
}

/// Steps that install the release of a wheel-only package for the torch here. If no table has the pair, they list the
/// releases.
pub(crate) fn wheel_for_torch(
    installer: &Installer<'_>,
    env: Option<&PyEnv>,
    package: &str,
) -> Vec<RemedyStep> {
    let torch = env.and_then(installed);
    let row = torch.as_ref().and_then(|torch| torch_series::series(torch.version.minor()));
    let fits = row.and_then(|row| match package {
        "torchvision" => Some(row.torchvision),
        "torchaudio" => Some(row.torchaudio),
        _ => None,
    });
    match (torch, fits) {
        (Some(torch), Some(fits)) => {
            let specs = [
                format!("torch=={}", torch.version.public()),
                format!("{package}{}", fits.constraint()),
            ];
            vec![installer.install(&specs, None)]
        }
        _ => vec![
            RemedyStep::Inspect {
                command: format!("{} -m pip index versions {package}", installer.python()),
            },
            RemedyStep::Manual {
                text: format!(
                    "{package} has no source distribution, and each of its releases is built for one torch: install the \
                     release whose notes name yours"
                ),
            },
        ],
    }
}

/// The step that compiles one of the [`EXTENSIONS`] against an environment's torch.
pub(crate) fn build_here(machine: &Machine, env: &PyEnv, package: &str) -> RemedyStep {
    let force = EXTENSIONS.iter().find(|row| row.package == package).and_then(|row| row.force);
    build_command(machine, &Installer::of(env), package, force)
}

/// Compiles only for the GPUs of this machine, which takes a fraction of the time for all architectures.
fn build_command(
    machine: &Machine,
    installer: &Installer,
    package: &str,
    force: Option<&str>,
) -> RemedyStep {
    let mut step = installer.build(&[package]);
    if let Some(force) = force {
        step = step.with_variable(force, "TRUE");
    }
    match arch_list(machine) {
        Some(list) => step.with_variable("TORCH_CUDA_ARCH_LIST", &list),
        None => step,
    }
}

/// The compute capabilities of the GPUs here in the syntax of `TORCH_CUDA_ARCH_LIST`: `8.6;9.0`.
fn arch_list(machine: &Machine) -> Option<String> {
    let mut all: Vec<String> =
        gpu::capabilities(machine).iter().map(|(_, sm)| dotted(*sm)).collect();
    all.dedup();
    (!all.is_empty()).then(|| all.join(";"))
}

/// The label in the name of a wheel for this torch and Python: `cu12torch2.9cxx11abiTRUE-cp312-cp312-linux_x86_64`.
pub(crate) fn wheel_label(machine: &Machine, env: &PyEnv) -> Option<String> {
    let torch = installed(env)?;
    let cuda = torch.cuda?;
    let arch = match machine.platform {
        Platform::LinuxX86_64 => "x86_64",
        Platform::LinuxAarch64 => "aarch64",
        _ => return None,
    };
    let minor = torch.version.minor();
    // PyTorch's x86-64 wheels use the new C++ ABI from 2.7 on; of 2.6, only those for CUDA 12.6 do. Its aarch64 wheels
    // use it from 2.6 on (read from the wheels' metadata, 2026-11-21); older aarch64 wheels vary.
    let new_abi = match (arch, minor) {
        (_, minor) if minor >= (2, 7) => true,
        ("x86_64", (2, 6)) => cuda == (12, 6),
        ("x86_64", _) => false,
        (_, (2, 6)) => true,
        _ => return None,
    };
    let abi = if new_abi { "TRUE" } else { "FALSE" };
    let python = env.interpreter.version.as_ref()?;
    let (major, python) = knowledge::minor_of(&python.value)?;
    let tag = format!("cp{major}{python}");
    Some(format!("cu{}torch{}cxx11abi{abi}-{tag}-{tag}-linux_{arch}", cuda.0, dotted(minor)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Context;
    use crate::test_support::{env, machines};

    #[test]
    fn wheel_label_follows_torch_cuda_and_platform() {
        let check = |machine: &Machine, torch: &str, cuda: &str, expect: Option<&str>| {
            let env = env("/v").torch(torch, Some(cuda)).build();
            assert_eq!(wheel_label(machine, &env).as_deref(), expect, "{torch}");
        };
        let a10 = machines::a10();
        check(
            &a10,
            "2.6.0+cu124",
            "12.4",
            Some("cu12torch2.6cxx11abiFALSE-cp312-cp312-linux_x86_64"),
        );
        check(
            &a10,
            "2.6.0+cu126",
            "12.6",
            Some("cu12torch2.6cxx11abiTRUE-cp312-cp312-linux_x86_64"),
        );
        check(
            &a10,
            "2.9.1+cu128",
            "12.8",
            Some("cu12torch2.9cxx11abiTRUE-cp312-cp312-linux_x86_64"),
        );
        let gh200 = machines::gh200();
        check(
            &gh200,
            "2.11.0+cu130",
            "13.0",
            Some("cu13torch2.11cxx11abiTRUE-cp312-cp312-linux_aarch64"),
        );
        check(&gh200, "2.5.1+cu124", "12.4", None);
        check(&machines::m3_max(), "2.9.0", "12.8", None);
    }

    #[test]
    fn builds_the_named_extension_for_the_gpu_here() {
        let machine = machines::a10();
        let envs = [env("/v").uv().torch("2.6.0+cu124", Some("12.4")).build()];
        let seen = |text| PastedError {
            context: Context { machine: &machine, envs: &envs },
            text,
            words: Vec::new(),
        };
        let fitting = |said| crate::remedy::text(seen(said).fitting_extension());
        let lines = fitting(
            "/v/lib/selective_scan_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol: x",
        );
        assert_eq!(
            lines[2],
            "MAMBA_FORCE_BUILD=TRUE TORCH_CUDA_ARCH_LIST=8.6 uv pip install --python /v/bin/python --reinstall \
             --no-deps --no-build-isolation --no-binary mamba-ssm mamba-ssm"
        );
        assert!(lines[0].contains("cu12torch2.6cxx11abiFALSE"), "{lines:?}");
        let unknown = fitting("/v/lib/own.so: undefined symbol: x");
        assert_eq!(unknown.len(), 1, "{unknown:?}");
        assert!(unknown[0].starts_with("# the package that has the .so file"), "{unknown:?}");
    }
}
