use super::gpu_too_old::{finding, unserved};
use super::{Context, Need, Rule, Text};
use crate::remedy::another_torch;
use crate::torch_code::TorchCode;
use facts::{Finding, Machine, PyEnv};
use knowledge::dotted;

pub(super) const RULE: Rule = Rule {
    id: "gpu-too-new",
    title: "the installed torch has no code for this newer GPU",
    about: "\
Each CUDA build of torch contains code for the architectures that existed when it was made. Machine code (SASS) also
runs on later GPUs of the same major compute capability (8.6 code on 8.9, 12.0 code on 12.1), but on no others, and the
published builds rarely contain PTX that the driver could compile for a newer GPU. Blackwell (10.0, 12.0) needs a cu128
or newer build, that is torch 2.7 or newer; Jetson Thor (11.0) needs cu130.

It shows as
  NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.
and then as
  CUDA error: no kernel image is available for execution on the device

Detected by reading the images in libtorch_cuda.so, or, if that cannot be read, in the published list of the build.

Install a build whose list has the architecture.",
    links: &[
        "https://github.com/pytorch/pytorch/issues/167244",
        "https://github.com/pytorch/pytorch/issues/150733",
    ],
    texts: &[
        Text::new("with CUDA capability sm_{sm} is not compatible with the current PyTorch installation", "\
UserWarning:
NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.
The current PyTorch install supports CUDA capabilities sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90."),
        Text::new("CUDA error: no kernel image is available for execution on the device", "\
torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device
CUDA kernel errors might be asynchronously reported at some other API call"),
    ],
    remedy: another_torch,
    needs: &[Need::Torch, Need::Gpu],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().filter_map(|env| judge(context.machine, env)).collect()
}

fn judge(machine: &Machine, env: &PyEnv) -> Option<Finding> {
    let code = TorchCode::of(machine, env)?;
    let (gpu, sm) = unserved(machine, &code).into_iter().find(|(_, sm)| *sm >= code.oldest())?;
    let cause = match code.ptx() {
        Some(ptx) => format!(
            "This build has no machine code for {}, and its PTX for {} runs only on newer GPUs.",
            dotted(sm),
            dotted(ptx)
        ),
        None => format!(
            "This build has no machine code for {} and no PTX a driver could compile for it.",
            dotted(sm)
        ),
    };
    Some(finding(&RULE, machine, env, &code, (gpu, sm), "too new for", cause))
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines, with_code};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let torch =
            |version: &str, cuda: &str| vec![env("/v").uv().torch(version, Some(cuda)).build()];
        let rtx5090 =
            || machines::x86_with("NVIDIA GeForce RTX 5090", (12, 0), "575.57.08", (12, 9));
        let b200 = || machines::x86_with("NVIDIA B200", (10, 0), "580.95.05", (13, 0));
        let built = |images: &[&str]| {
            let env = env("/v").torch("2.7.1+cu126", Some("12.6"));
            vec![
                env.compiled("torch", "torch/lib/libtorch_cuda.so", with_code(400, images)).build(),
            ]
        };
        vec![
            Case::new("RTX 5090 on cu126", rtx5090(), torch("2.7.1+cu126", "12.6")).finds(
                Error,
                Likely,
                &[
                    "NVIDIA GeForce RTX 5090 (sm_120) is too new for torch 2.7.1+cu126 in /v",
                    "that build has sm_50 sm_60",
                    "no PTX",
                    "torch==2.7.1 --index-url https://download.pytorch.org/whl/cu128",
                ],
            ),
            Case::new(
                "RTX 5090 on a torch before Blackwell",
                rtx5090(),
                torch("2.5.1+cu121", "12.1"),
            )
            .finds(
                Error,
                Likely,
                &["'torch==2.7.*' --index-url https://download.pytorch.org/whl/cu128"],
            ),
            Case::new("B200 on cu124", b200(), torch("2.6.0+cu124", "12.4")).finds(
                Error,
                Likely,
                &["sm_100", "whl/cu128"],
            ),
            Case::new("Thor on cu128", machines::jetson_thor(), torch("2.9.1+cu128", "12.8"))
                .finds(
                    Error,
                    Likely,
                    &["sm_110", "torch==2.9.1 --index-url https://download.pytorch.org/whl/cu130"],
                ),
            Case::new(
                "GB200 on the wheel only for Hopper",
                machines::with_gpu(
                    machines::gh200(),
                    machines::gpu("NVIDIA GB200", (10, 0), 189_000),
                    "570.148.08",
                    (12, 8),
                ),
                torch("2.6.0+cu126", "12.6"),
            )
            .finds(Error, Likely, &["NVIDIA GB200 (sm_100) is too new", "whl/cu128"]),
            Case::new("from the file's images", rtx5090(), built(&["sm_80", "sm_90"])).finds(
                Error,
                Certain,
                &["that build has sm_80 sm_90 [/v/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so]"],
            ),
            Case::new("the file has PTX", rtx5090(), built(&["sm_80", "compute_80 8.5"])),
            Case::new("RTX 5090 on cu128", rtx5090(), torch("2.9.1+cu128", "12.8")),
            Case::new(
                "RTX 4090 runs the code of 8.6",
                machines::rtx4090(),
                torch("2.5.1+cu121", "12.1"),
            ),
            Case::new("GB10 runs the code of 12.0", machines::gb10(), torch("2.9.1+cu130", "13.0")),
            Case::new(
                "Orin is another rule",
                machines::jetson_orin(),
                torch("2.9.1+cu126", "12.6"),
            ),
            Case::new(
                "too old is another rule",
                machines::x86_with("Tesla V100-SXM2-32GB", (7, 0), "580.95.05", (13, 0)),
                torch("2.11.0+cu130", "13.0"),
            ),
            Case::new("no GPU", machines::x86(), torch("2.9.1+cu126", "12.6")),
        ]
    }
}
