use super::{Context, Need, Rule, Text};
use crate::gpu;
use crate::torch_code::TorchCode;
use facts::{Finding, Machine, MachineKind, PyEnv, Severity};
use knowledge::dotted;

pub(super) const RULE: Rule = Rule {
    id: "capability-warning",
    title: "torch's warning about the capability range is harmless on this GPU",
    about: "\
torch warns when a GPU's compute capability is above the highest it was built for. It compares only the numbers:
machine code (SASS) for one compute capability also runs on later ones of the same major version, so a GB10 (DGX Spark,
12.1) runs the sm_120 code of the published wheels.

It shows as
  Found GPU0 NVIDIA GB10 which is of cuda capability 12.1.
  Minimum and Maximum cuda capability supported by this version of PyTorch is (8.0) - (12.0)

No action is needed. A package compiled for exactly one architecture (sm_120a) is different: that code does not run on
12.1 and fails with `no kernel image is available`.",
    links: &["https://github.com/pytorch/pytorch/issues/172629"],
    texts: &[Text::new("Minimum and Maximum cuda capability supported by this version of PyTorch is", "\
UserWarning: Found GPU0 NVIDIA GB10 which is of cuda capability 12.1.
    Minimum and Maximum cuda capability supported by this version of PyTorch is
    (8.0) - (12.0)")],
    role: super::Role::Notice,
    remedy: |_| vec!["# nothing needs doing: code for 12.0 runs on 12.1".into()],
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
    let (newest, list) = (code.newest(), code.evidence());
    let unserved = code.unserved();
    let torch = env.torch.as_ref()?;
    // On Tegra, code for another minor version does not run, so the warning is not harmless there.
    if machine.kind == MachineKind::Jetson {
        return None;
    }
    let (gpu, sm) = gpu::capabilities(machine)
        .into_iter()
        .find(|(_, sm)| *sm > newest && unserved.iter().all(|(_, other)| other != sm))?;
    let finding = RULE
        .finding(
            Severity::Info,
            code.confidence(),
            format!(
                "torch {} in {} may warn that {} ({}) is above its range; it runs all the same",
                torch.version,
                env.root,
                gpu.name.value,
                dotted(sm)
            ),
        )
        .evidence(gpu::describe(gpu), gpu.name.source.clone())
        .evidence(list.what, list.source)
        .cause(format!(
            "The warning compares {} with the highest listed architecture, {}; code for one compute capability also \
             runs on later ones of the same major version.",
            dotted(sm),
            dotted(newest)
        ))
        .finish();
    Some(finding)
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines, with_code};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let torch = |version: &str, cuda: &str| vec![env("/v").torch(version, Some(cuda)).build()];
        let built = |images: &[&str]| {
            let env = env("/v").torch("2.9.1+cu130", Some("13.0"));
            vec![
                env.compiled("torch", "torch/lib/libtorch_cuda.so", with_code(400, images)).build(),
            ]
        };
        vec![
            Case::new("GB10 on sm_120 builds", machines::gb10(), torch("2.9.1+cu130", "13.0"))
                .finds(
                    Info,
                    Likely,
                    &["NVIDIA GB10 (12.1)", "it runs all the same", "sm_120 compute_120", "12.0"],
                ),
            Case::new("GB10, from the file's images", machines::gb10(), built(&["sm_90", "sm_120"])).finds(
                Info,
                Certain,
                &["that build has sm_90 sm_120 [/v/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so]"],
            ),
            Case::new("GB10, a file without an image for 12.0", machines::gb10(), built(&["sm_90", "sm_100"])),
            Case::new(
                "GB10 on the limited cu129 wheel",
                machines::gb10(),
                torch("2.9.1+cu129", "12.9"),
            )
            .finds(Info, Likely, &["sm_80 sm_90 sm_100 sm_120"]),
            Case::new(
                "B300 is within the range",
                machines::x86_with("NVIDIA B300", (10, 3), "580.95.05", (13, 0)),
                torch("2.9.1+cu130", "13.0"),
            ),
            Case::new(
                "GB10 without any code for it",
                machines::gb10(),
                torch("2.9.1+cu126", "12.6"),
            ),
            Case::new("H200", machines::h200(), torch("2.11.0+cu130", "13.0")),
            Case::new("Thor", machines::jetson_thor(), torch("2.9.1+cu130", "13.0")),
        ]
    }
}
