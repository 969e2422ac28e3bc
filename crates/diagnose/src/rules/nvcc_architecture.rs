use super::{Observation, PastedError, Rule, Text};
use crate::remedy::quote;
use crate::{gpu, host};
use facts::CudaToolkit;
use knowledge::{Minor, Sm, dotted};

pub(super) const RULE: Rule = Rule {
    id: "nvcc-architecture",
    title: "nvcc does not support the target GPU architecture",
    about: "\
Each CUDA toolkit compiles for the GPUs that existed when it was made: compute_90 needs CUDA 11.8, compute_120 needs
12.8, and CUDA 13 dropped everything before Turing (7.5). The build of a package that compiles for this GPU, or for a
list of architectures written for another toolkit, stops at the first architecture that nvcc does not support.

It shows as
  nvcc fatal   : Unsupported gpu architecture 'compute_120'

Detected by comparing the GPU's compute capability with what the toolkits found here compile for.

Use an nvcc that supports the GPU, of torch's own CUDA release if that is new enough; or set the architectures that the
build compiles for.",
    links: &[
        "https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/index.html#gpu-feature-list",
        "https://github.com/mit-han-lab/Block-Sparse-Attention/issues/15",
    ],
    texts: &[
        Text::new("nvcc fatal : Unsupported gpu architecture 'compute_{sm}", "nvcc fatal   : Unsupported gpu architecture 'compute_120'"),
        Text::new("nvrtc: error: invalid value for --gpu-architecture", "nvrtc: error: invalid value for --gpu-architecture (-arch)"),
    ],
    remedy: |seen| {
        let wanted = named(seen);
        let mut lines = match wanted.and_then(first_release) {
            Some(cuda) => {
                let newer = |toolkit: &&CudaToolkit| toolkit.has_nvcc && release(toolkit) >= Some(cuda);
                match seen.machine().toolkits.iter().find(newer) {
                    Some(toolkit) => vec![format!("export CUDA_HOME={}", quote(&toolkit.root))],
                    None => host::install_toolkit(seen.machine(), cuda),
                }
            }
            None => Vec::new(),
        };
        lines.push("# or compile only for this machine's GPU:".into());
        let here = gpu::capabilities(seen.machine()).first().map(|(_, sm)| *sm);
        lines.push(match here {
            Some(sm) => format!("export TORCH_CUDA_ARCH_LIST={}", dotted(sm)),
            None => "nvidia-smi --query-gpu=compute_cap --format=csv".into(),
        });
        lines
    },
    observe: Some(observe),
    ..Rule::BLANK
};

/// The first CUDA release whose nvcc compiles for a GPU. Source: NVIDIA's release notes, read on 2026-11-22.
fn first_release(sm: Sm) -> Option<Minor> {
    Some(match sm {
        (7, 0 | 2) => (9, 0),
        (7, 5) => (10, 0),
        (8, 0) => (11, 0),
        (8, 6) => (11, 1),
        (8, 7) => (11, 4),
        (8, 9) | (9, 0) => (11, 8),
        (10, 0) | (12, 0) => (12, 8),
        (10, 3) | (12, 1) => (12, 9),
        (11, 0) => (13, 0),
        _ => return None,
    })
}

fn release(toolkit: &CudaToolkit) -> Option<Minor> {
    toolkit.version.as_ref().and_then(|version| knowledge::minor_of(&version.value))
}

/// The architecture that the text names: `120a` is 12.0.
fn named(seen: &PastedError) -> Option<Sm> {
    let digits: String =
        seen.word("sm")?.chars().take_while(|letter| letter.is_ascii_digit()).collect();
    let (major, minor) = digits.split_at(digits.len().checked_sub(1)?);
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn observe(seen: &PastedError) -> Option<Observation> {
    let wanted = named(seen)?;
    let first = first_release(wanted)?;
    let toolkit = seen.machine().toolkits.iter().find(|toolkit| toolkit.has_nvcc)?;
    let version = toolkit.version.as_ref()?;
    let release = release(toolkit)?;
    let dropped = release.0 >= 13 && wanted < (7, 5);
    let what =
        format!("nvcc of CUDA {}; {} needs {}", version.value, dotted(wanted), dotted(first));
    Some(Observation::new(release < first || dropped, what, version.source.clone()))
}

#[cfg(test)]
mod tests {
    use crate::test_support::machines;

    #[test]
    fn installed_toolkit_confirms_or_refutes() {
        let check = |text: &str, expect: Option<bool>, fix: &str| {
            let found = &crate::explain(text, &machines::a10(), &[])[0];
            assert_eq!(found.rule.id, "nvcc-architecture");
            assert_eq!(found.confirmed_here, expect, "{text}");
            assert!(fix.is_empty() || found.fix.iter().any(|line| line.contains(fix)), "{found:?}");
        };
        // The A10's nvcc is of CUDA 12.4.
        let text = "nvcc fatal   : Unsupported gpu architecture 'compute_120a'";
        check(text, Some(true), "cuda-toolkit-12-8");
        check("nvcc fatal   : Unsupported gpu architecture 'compute_86'", Some(false), "");
        check(
            "nvcc fatal   : Unsupported gpu architecture 'compute_native'",
            None,
            "ARCH_LIST=8.6",
        );
    }
}
