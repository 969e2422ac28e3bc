use super::{Context, Need, Rule, Text};
use crate::gpu;
use crate::remedy::Installer;
use crate::torch_code::TorchCode;
use facts::{Finding, MachineKind, PyEnv, Severity};
use knowledge::dotted;

pub(super) const RULE: Rule = Rule {
    id: "jetson-server-wheel",
    title: "a torch wheel for server Arm on a Jetson",
    about: "\
Jetson (Tegra) and Arm servers are both aarch64, but need different GPU code. PyTorch's aarch64 CUDA wheels contain code
for sm_80, sm_90 and newer server GPUs. Code for 8.0 runs on later 8.x desktop and server GPUs, but NVIDIA does not
support this on Tegra, so an Orin (8.7) has no code it can run. The cu130 wheels support Thor (11.0).

It shows as torch.cuda.is_available() being True and then, at the first kernel,
  CUDA error: no kernel image is available for execution on the device

Detected on a Tegra by the images in libtorch_cuda.so, or, if that cannot be read, by the wheel's label.

Install the wheel NVIDIA builds for the JetPack release, or build torch with TORCH_CUDA_ARCH_LIST=8.7.",
    links: &[
        "https://github.com/pytorch/pytorch/issues/145560",
        "https://github.com/jax-ml/jax/pull/40492",
    ],
    texts: &[
        Text::new("Orin with CUDA capability sm_87 is not compatible with the current PyTorch installation", "\
Orin with CUDA capability sm_87 is not compatible with the current PyTorch installation.
The current PyTorch install supports CUDA capabilities sm_80 sm_90."),
        Text::new("CUDA error: no kernel image is available for execution on the device", "\
torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device
CUDA kernel errors might be asynchronously reported at some other API call"),
    ],
    remedy: |seen| {
        vec![
            seen.installer().uninstall(&["torch"]).into(),
            "# then install NVIDIA's torch wheel for this JetPack release, or build torch with:".into(),
            "export TORCH_CUDA_ARCH_LIST=8.7".into(),
        ]
    },
    needs: &[Need::Torch, Need::Gpu],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    if context.machine.kind != MachineKind::Jetson {
        return Vec::new();
    }
    context.envs.iter().filter_map(|env| judge(context, env)).collect()
}

fn judge(context: &Context, env: &PyEnv) -> Option<Finding> {
    let code = TorchCode::of(context.machine, env)?;
    let list = code.evidence();
    let torch = env.torch.as_ref()?;
    // From Thor on, a Jetson uses the server wheels, and `gpu-too-new` reports a missing architecture.
    let (gpu, sm) = code.unserved().into_iter().find(|(_, sm)| sm.0 < 11)?;
    let installer = Installer::of(env);
    let finding = RULE
        .finding(
            Severity::Error,
            code.confidence(),
            format!(
                "torch {} in {} is the wheel for Arm servers; it has no code for this Jetson's sm_{}{}",
                torch.version, env.root, sm.0, sm.1
            ),
        )
        .evidence(format!("version {}", torch.version), torch.source.clone())
        .evidence(list.what, list.source)
        .evidence(gpu::describe(gpu), gpu.name.source.clone())
        .cause(format!(
            "On Tegra machine code runs only on the architecture it was built for, and the server wheels are not \
             built for {}.",
            dotted(sm)
        ))
        .fix([
            installer.uninstall(&["torch"]),
            "# then install NVIDIA's torch wheel for this JetPack release, or build torch with:".into(),
            format!("export TORCH_CUDA_ARCH_LIST={}", dotted(sm)).into(),
        ])
        .finish();
    Some(finding)
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let torch = |version: &str, cuda: &str| {
            vec![env("/v").python("3.10.12").torch(version, Some(cuda)).build()]
        };
        vec![
            Case::new("cu126 on an Orin", machines::jetson_orin(), torch("2.9.1+cu126", "12.6"))
                .finds(
                    Error,
                    Likely,
                    &[
                        "sm_87",
                        "that build has sm_80 sm_90",
                        "Orin (nvgpu) (compute capability 8.7)",
                        "/v/bin/python -m pip uninstall --yes torch",
                        "export TORCH_CUDA_ARCH_LIST=8.7",
                    ],
                ),
            Case::new(
                "NVIDIA's own build",
                machines::jetson_orin(),
                torch("2.5.0a0+872d972e41.nv24.08", "12.6"),
            ),
            Case::new(
                "a community build without a label",
                machines::jetson_orin(),
                torch("2.8.0", "12.6"),
            ),
            Case::new(
                "Thor uses the server wheel",
                machines::jetson_thor(),
                torch("2.9.1+cu130", "13.0"),
            ),
            Case::new(
                "Thor on cu128 is gpu-too-new",
                machines::jetson_thor(),
                torch("2.9.1+cu128", "12.8"),
            ),
            Case::new("a server", machines::gh200(), torch("2.9.1+cu126", "12.6")),
        ]
    }
}
