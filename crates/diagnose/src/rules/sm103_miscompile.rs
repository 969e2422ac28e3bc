use super::{Context, Need, Rule};
use crate::gpu;
use crate::gpu_code::architectures;
use crate::native::{Native, files};
use crate::remedy::Installer;
use crate::torch_build::live_dist;
use facts::{Confidence, Dist, Finding, Gpu, Machine, PyEnv, RemedyStep, Severity};

pub(super) const RULE: Rule = Rule {
    id: "sm103-miscompile",
    title: "causal-conv1d compiled for B300 by CUDA 13 computes wrongly",
    about: "\
nvcc of CUDA 13 miscompiles causal-conv1d's kernels for sm_103 (B300): results are off by 0.4 to 0.6 without any error,
and the update of the convolution state is lost. Every build from source with CUDA 13 is affected, because the setup
adds sm_103 from CUDA 13 on. The published wheels have code only for sm_100, which runs on B300 and is correct.

It shows no error message: a hybrid model generates wrong text, while every benchmark passes.

Detected on a B300 by sm_103 code in the package's fatbin, or, if that cannot be read, by a version without a published
wheel's label.

Install the published wheel, or build only for sm_100, and compare with F.conv1d before you use it.",
    links: &[
        "https://github.com/Dao-AILab/causal-conv1d/issues/105",
        "https://github.com/Dao-AILab/causal-conv1d/pull/106",
    ],
    texts: &[
    ],
    remedy: |seen| {
        let build = seen.installer().build(&["causal-conv1d"]);
        vec![format!("CAUSAL_CONV1D_FORCE_BUILD=TRUE TORCH_CUDA_ARCH_LIST=10.0 {build}")]
    },
    needs: &[Need::Gpu, Need::Package("causal-conv1d")],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().filter_map(|env| judge(context.machine, env)).collect()
}

fn judge(machine: &Machine, env: &PyEnv) -> Option<Finding> {
    let (gpu, _) = gpu::capabilities(machine).into_iter().find(|(_, sm)| *sm == (10, 3))?;
    let dist = live_dist(env, "causal-conv1d")?;
    let code: Vec<Native<'_>> = files(env)
        .filter(|native| native.owner_name().as_deref() == Some("causal-conv1d"))
        .filter(|native| !native.elf.gpu_code.is_empty())
        .collect();
    if !code.is_empty() {
        let images = |native: &Native<'_>| {
            native
                .elf
                .gpu_code
                .iter()
                .flat_map(|code| &code.images)
                .any(|image| image.sm == (10, 3))
        };
        return code.iter().find(|native| images(native)).map(|native| by_bytes(gpu, dist, native));
    }
    // A published wheel's version has a label (+cu12torch2.9...) and no sm_103 code.
    if dist.version.contains('+') {
        return None;
    }
    let finding = RULE
        .finding(
            Severity::Warning,
            Confidence::Possible,
            format!("causal-conv1d {} in {} may compute wrongly on the {}", dist.version, env.root, gpu.name.value),
        )
        .evidence(gpu::describe(gpu), gpu.name.source.clone())
        .evidence(format!("causal-conv1d {}, without a wheel's label", dist.version), format!("{}/METADATA", dist.path))
        .cause("A build with CUDA 13 has sm_103 code, which that nvcc miscompiles; code for sm_100 runs and is correct.")
        .fix([for_sm100(&Installer::of(env))])
        .finish();
    Some(finding)
}

/// Builds it with code for sm_100, which sm_103 runs.
fn for_sm100(installer: &Installer<'_>) -> RemedyStep {
    installer
        .build(&["causal-conv1d"])
        .with_variable("CAUSAL_CONV1D_FORCE_BUILD", "TRUE")
        .with_variable("TORCH_CUDA_ARCH_LIST", "10.0")
}

/// A file with sm_103 code. That nvcc 13 compiled it is inferred, because the setup adds sm_103 only with CUDA 13.
fn by_bytes(gpu: &Gpu, dist: &Dist, native: &Native<'_>) -> Finding {
    let what = format!("causal-conv1d {} in {}", dist.version, native.env.root);
    RULE.finding(Severity::Error, Confidence::Likely, format!("{what} computes wrongly on the {}", gpu.name.value))
        .evidence(gpu::describe(gpu), gpu.name.source.clone())
        .evidence(format!("it has {}", architectures(&native.elf.gpu_code)), native.file.path.clone())
        .cause("It has code for sm_103, which the nvcc of CUDA 13 miscompiles; code for sm_100 runs on this GPU and is correct.")
        .fix([for_sm100(&Installer::of(native.env))])
        .finish()
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines, with_code};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let b300 = || machines::x86_with("NVIDIA B300 SXM6 AC", (10, 3), "580.95.05", (13, 0));
        let conv = |version: &str| vec![env("/v").dist("causal-conv1d", version).build()];
        let built = |images: &[&str]| {
            let file = ("causal_conv1d_cuda.so", with_code(4, images));
            vec![
                env("/v")
                    .dist("causal-conv1d", "1.6.1")
                    .compiled("causal-conv1d", file.0, file.1)
                    .build(),
            ]
        };
        vec![
            Case::new("a build from source on B300", b300(), conv("1.6.1")).finds(
                Warning,
                Possible,
                &[
                    "may compute wrongly on the NVIDIA B300",
                    "TORCH_CUDA_ARCH_LIST=10.0",
                    "without a wheel's label",
                ],
            ),
            Case::new("the published wheel", b300(), conv("1.6.1+cu12torch2.9cxx11abiTRUE")),
            Case::new("sm_103 code in the file", b300(), built(&["sm_90", "sm_100", "sm_103"]))
                .finds(
                    Error,
                    Likely,
                    &[
                        "computes wrongly on the NVIDIA B300",
                        "it has sm_90 sm_100 sm_103",
                        "causal_conv1d_cuda.so",
                    ],
                ),
            Case::new("only sm_100 code in the file", b300(), built(&["sm_90", "sm_100"])),
            Case::new("H200", machines::h200(), conv("1.6.1")),
            Case::new("B300 without it", b300(), vec![env("/v").build()]),
        ]
    }
}
