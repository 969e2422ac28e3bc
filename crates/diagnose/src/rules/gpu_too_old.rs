use super::{Context, Need, Rule, Text};
use crate::gpu::Sm;
use crate::remedy::{Installer, another_torch};
use crate::torch_build::installed;
use crate::torch_choice::choose;
use crate::torch_code::TorchCode;
use facts::{Finding, Gpu, Machine, MachineKind, PyEnv, Severity};
use knowledge::dotted;

pub(super) const RULE: Rule = Rule {
    id: "gpu-too-old",
    title: "the installed torch has dropped this GPU's architecture",
    about: "\
Each CUDA build of torch contains code for a list of architectures, and newer builds drop old ones: no cu128 or newer
build has Maxwell and Pascal, torch 2.11 dropped Volta from cu128, CUDA 13 begins at Turing (7.5), and torch 2.15 ended
the cu126 builds, the last ones with these architectures.

It shows as a warning when CUDA starts,
  PyTorch no longer supports this GPU because it is too old.
  The minimum cuda capability supported by this library is 7.5.
and then as
  CUDA error: no kernel image is available for execution on the device

Detected by reading the images in libtorch_cuda.so, or, if that cannot be read, in the published list of the build.

Install the cu126 build of torch 2.14 or older.",
    links: &[
        "https://github.com/astral-sh/uv/issues/14742",
        "https://github.com/pytorch/pytorch/issues/172352",
        "https://github.com/pytorch/pytorch/issues/190385",
    ],
    texts: &[
        Text::new("PyTorch no longer supports this GPU because it is too old", "\
    Found GPU0 Tesla P100-PCIE-16GB which is of cuda capability 6.0.
    PyTorch no longer supports this GPU because it is too old.
    The minimum cuda capability supported by this library is 7.5."),
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
    let (gpu, sm) = unserved(machine, &code).into_iter().find(|(_, sm)| *sm < code.oldest())?;
    let cause = format!(
        "The oldest architecture in this build is {}, and code for a newer GPU does not run on an older one.",
        dotted(code.oldest())
    );
    Some(finding(&RULE, machine, env, &code, (gpu, sm), "too old for", cause))
}

/// The GPUs a build has no code for. `jetson-server-wheel` covers a Jetson older than Thor.
pub(super) fn unserved<'a>(machine: &Machine, code: &TorchCode<'a>) -> Vec<(&'a Gpu, Sm)> {
    let mut gpus = code.unserved();
    gpus.retain(|(_, sm)| machine.kind != MachineKind::Jetson || sm.0 >= 11);
    gpus
}

/// The finding of both architecture rules: the GPU, the build's architectures, and a build that fits.
pub(super) fn finding(
    rule: &Rule,
    machine: &Machine,
    env: &PyEnv,
    code: &TorchCode<'_>,
    (gpu, sm): (&Gpu, Sm),
    relation: &str,
    cause: String,
) -> Finding {
    let torch = env.torch.as_ref();
    let version = torch.map_or("", |torch| torch.version.as_str());
    let source = torch.map_or("", |torch| torch.source.as_str());
    let capability = gpu.compute_capability.as_ref().map_or("", |fact| fact.source.as_str());
    let chosen = installed(env).and_then(|torch| choose(machine, env, Some(&torch.version)));
    let fix = match chosen {
        Some(choice) => Installer::of(env).replace_torch(&choice),
        None => vec![
            "# no published CUDA build serves this GPU, driver and Python together; without the GPU:".into(),
            Installer::of(env).uninstall(&["torch"]),
            Installer::of(env).install_from(&["torch".to_owned()], "https://download.pytorch.org/whl/cpu"),
        ],
    };
    let list = code.evidence();
    rule.finding(
        Severity::Error,
        code.confidence(),
        format!(
            "{} (sm_{}{}) is {relation} torch {version} in {}",
            gpu.name.value, sm.0, sm.1, env.root
        ),
    )
    .evidence(format!("compute capability {}", dotted(sm)), capability)
    .evidence(format!("torch {version}"), source)
    .evidence(list.what, list.source)
    .cause(cause)
    .fix(fix)
    .finish()
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines, with_code};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let torch =
            |version: &str, cuda: &str| vec![env("/v").uv().torch(version, Some(cuda)).build()];
        let p100 = || machines::x86_with("Tesla P100-PCIE-16GB", (6, 0), "570.148.08", (12, 8));
        let v100 = || machines::x86_with("Tesla V100-SXM2-32GB", (7, 0), "580.95.05", (13, 0));
        let k40 = || machines::x86_with("Tesla K40c", (3, 5), "470.256.02", (11, 4));
        let built = |images: &[&str]| {
            let env = env("/v").torch("2.12.0.dev20260101+cu130", Some("13.0"));
            vec![
                env.compiled("torch", "torch/lib/libtorch_cuda.so", with_code(400, images)).build(),
            ]
        };
        vec![
            Case::new("Pascal on cu128", p100(), torch("2.9.1+cu128", "12.8")).finds(
                Error,
                Likely,
                &[
                    "Tesla P100-PCIE-16GB (sm_60) is too old for torch 2.9.1+cu128 in /v",
                    "that build has sm_70 sm_75",
                    "oldest architecture in this build is 7.0",
                    "torch==2.9.1 --index-url https://download.pytorch.org/whl/cu126",
                ],
            ),
            Case::new("Volta on CUDA 13", v100(), torch("2.10.0+cu130", "13.0")).finds(
                Error,
                Likely,
                &["torch==2.10.0 --index-url https://download.pytorch.org/whl/cu128"],
            ),
            Case::new("Volta on cu128 of 2.11", v100(), torch("2.11.0+cu128", "12.8")).finds(
                Error,
                Likely,
                &["torch==2.11.0 --index-url https://download.pytorch.org/whl/cu126"],
            ),
            Case::new("Volta after the end of cu126", v100(), torch("2.15.0+cu132", "13.2")).finds(
                Error,
                Likely,
                &["'torch==2.14.*' --index-url https://download.pytorch.org/whl/cu126"],
            ),
            Case::new("nothing published serves a K40", k40(), torch("2.5.1+cu118", "11.8")).finds(
                Error,
                Likely,
                &["no published CUDA build", "whl/cpu"],
            ),
            Case::new("Pascal, from the images of an unpublished build", p100(), built(&["sm_75", "sm_80"]))
                .finds(
                    Error,
                    Certain,
                    &[
                        "Tesla P100-PCIE-16GB (sm_60) is too old for torch 2.12.0.dev20260101+cu130",
                        "that build has sm_75 sm_80 [/v/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so]",
                    ],
                ),
            Case::new("the file's images override the label", p100(), built(&["sm_60", "sm_80"])),
            Case::new("Pascal on cu126", p100(), torch("2.14.0+cu126", "12.6")),
            Case::new("Volta on cu128 of 2.10", v100(), torch("2.10.0+cu128", "12.8")),
            Case::new("too new is another rule", machines::gb10(), torch("2.9.1+cu126", "12.6")),
            Case::new(
                "missing in the middle is not old",
                machines::jetson_thor(),
                torch("2.9.1+cu128", "12.8"),
            ),
            Case::new("a build missing from the table", v100(), torch("2.11.0", "13.0")),
            Case::new("a nightly", v100(), torch("2.12.0.dev20260101+cu130", "13.0")),
            Case::new(
                "conda's build has its own list",
                v100(),
                vec![
                    env("/c")
                        .conda()
                        .torch("2.11.0+cu130", Some("13.0"))
                        .installer("torch", "conda")
                        .build(),
                ],
            ),
        ]
    }
}
