//! Packages that are compiled against one torch: which one an error names, and how to get the one that fits here.

use crate::gpu;
use crate::remedy::Installer;
use crate::seen::Seen;
use crate::torch_build::installed;
use facts::{Machine, Platform, PyEnv, RemedyStep};
use knowledge::{dotted, torch_series};

/// A package whose setup first looks for a prebuilt wheel, and what makes it compile.
pub(crate) struct Extension {
    /// The distribution.
    pub(crate) package: &'static str,
    /// Words of its compiled files' names.
    files: &'static [&'static str],
    /// The variable that forbids the prebuilt wheel, which is what failed.
    pub(crate) force: Option<&'static str>,
}

const fn row(
    package: &'static str,
    files: &'static [&'static str],
    force: Option<&'static str>,
) -> Extension {
    Extension { package, files, force }
}

/// The extensions people meet in errors, by their compiled files.
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

/// Packages that PyPI has as wheels alone: asked for a build from source, an installer finds nothing at all.
/// Source: a dry run of each with `--no-binary`, 2026-11-22.
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

/// Packages each release of which requires exactly one torch release: their wheels' Requires-Dist on PyPI, read on 2026-11-28.
const PINS_TORCH: [&str; 4] = ["vllm", "xformers", "torchvision", "torchaudio"];

/// Whether a package can be built from what PyPI has.
pub(crate) fn has_source(name: &str) -> bool {
    !WHEELS_ONLY.contains(&name) && !name.starts_with("nvidia-") && name != "triton"
}

impl Seen<'_> {
    /// The extension an error is about, by the compiled file or package it names.
    pub(crate) fn extension(&self) -> Option<&'static Extension> {
        EXTENSIONS.iter().find(|row| row.files.iter().any(|file| self.text.contains(file)))
    }

    /// The package that owns the compiled file in the text: by RECORD where the file is here, else by its folder in site-packages.
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

    /// Gets an extension that fits the torch here: the wheel's label where one is published, and the build.
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

/// Whether PyPI has a package's compiled code as source alone, so that the wheel for another Python or processor is made here.
pub(crate) fn is_compiled_here(name: &str) -> bool {
    EXTENSIONS.iter().any(|row| row.package == name && row.force.is_some())
}

/// The release of a package without sources that goes with the torch here, by name where a table of releases has it.
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

/// The command that compiles one of the [`EXTENSIONS`] against an environment's torch.
pub(crate) fn build_here(machine: &Machine, env: &PyEnv, package: &str) -> RemedyStep {
    let force = EXTENSIONS.iter().find(|row| row.package == package).and_then(|row| row.force);
    build_command(machine, &Installer::of(env), package, force)
}

/// Compiles for the GPUs here alone, which takes a fraction of the time that all architectures take.
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

/// The architectures of the GPUs here as TORCH_CUDA_ARCH_LIST wants them: `8.6;9.0`.
fn arch_list(machine: &Machine) -> Option<String> {
    let mut all: Vec<String> =
        gpu::capabilities(machine).iter().map(|(_, sm)| dotted(*sm)).collect();
    all.dedup();
    (!all.is_empty()).then(|| all.join(";"))
}

/// What the name of a wheel for this torch and Python has: `cu12torch2.9cxx11abiTRUE-cp312-cp312-linux_x86_64`.
pub(crate) fn wheel_label(machine: &Machine, env: &PyEnv) -> Option<String> {
    let torch = installed(env)?;
    let cuda = torch.cuda?;
    let arch = match machine.platform {
        Platform::LinuxX86_64 => "x86_64",
        Platform::LinuxAarch64 => "aarch64",
        _ => return None,
    };
    let minor = torch.version.minor();
    // PyTorch's x86-64 wheels have the new C++ ABI from 2.7 on, and in 2.6 those for CUDA 12.6; its aarch64 wheels from
    // 2.6 on (read from the wheels' metadata, 2026-11-21). Older aarch64 ones differ among themselves.
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
    fn the_label_of_a_wheel_that_fits() {
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
    fn the_extension_an_error_names_is_built_for_the_gpu_here() {
        let machine = machines::a10();
        let envs = [env("/v").uv().torch("2.6.0+cu124", Some("12.4")).build()];
        let seen = |text| Seen {
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
