use super::{Context, Need, Rule, Text};
use crate::gpu;
use crate::remedy::{Installer, quote, text};
use crate::torch_build::{Installed, by_conda, installed, linux_arch, live_dist};
use crate::torch_choice::choose;
use facts::{Confidence, Finding, Machine, MachineKind, PyEnv, RemedyStep, Severity};
use knowledge::{Arch, Version};

pub(super) const RULE: Rule = Rule {
    id: "cpu-only-torch",
    title: "a CPU-only torch on a machine with an NVIDIA GPU",
    about: "\
The installed torch was built without CUDA, so it cannot use the GPU whatever the driver. On 64-bit Arm, PyPI's wheels
of torch 2.10 and older are CPU-only, and the CUDA wheels are on PyTorch's own index. On x86-64, a CPU-only torch comes
from PyTorch's CPU index, or from conda resolving on a machine without a visible GPU.

It shows as torch.cuda.is_available() being False while nvidia-smi sees the GPU, as
  AssertionError: Torch not compiled with CUDA enabled
and, because Triton kernels need that torch too, as
  Triton is not supported on current platform, roll back to CPU.
Replacing torch also removes this message.

Detected in torch/version.py, which says `cuda = None`.

Uninstall torch and install it from the index of a CUDA release the driver runs. A package that pins torch can reinstall
the CPU build: install it together with torch, from that index.",
    links: &[
        "https://github.com/pytorch/pytorch/issues/160162",
        "https://github.com/pytorch/pytorch/issues/168065",
    ],
    texts: &[
        Text::new("Torch not compiled with CUDA enabled", "AssertionError: Torch not compiled with CUDA enabled"),
        Text::new("Triton is not supported on current platform", "Triton is not supported on current platform, roll back to CPU."),
    ],
    remedy: |seen| match seen.env() {
        Some(env) => text(fix(seen.machine(), env, None)),
        None => vec!["# no Python environment was found; name it with --venv".into()],
    },
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
    let gpu = gpu::nvidia(machine).next()?;
    let torch = installed(env)?;
    let arm = linux_arch(machine)? == Arch::Aarch64;
    let label = torch.version.local.as_deref().unwrap_or_default();
    // A build for another vendor's GPU has no CUDA either, but the user chose it.
    let other_maker = torch.torch.hip.is_some() || label.starts_with("xpu");
    if torch.torch.cuda.is_some() || other_maker {
        return None;
    }
    let mut draft = RULE
        .finding(
            Severity::Error,
            Confidence::Certain,
            format!(
                "torch {} in {} is a CPU-only build; the {} cannot be used",
                torch.torch.version, env.root, gpu.name.value
            ),
        )
        .evidence("cuda = None", torch.torch.source.clone())
        .evidence(gpu::describe(gpu), gpu.name.source.clone());
    if let Some(dist) = live_dist(env, "torch").filter(|dist| !dist.tags.is_empty()) {
        draft = draft.evidence(
            format!("wheel tag {}", dist.tags.join(", ")),
            format!("{}/WHEEL", dist.path),
        );
    }
    if live_dist(env, "triton").is_none() {
        draft = draft.evidence(
            "triton is not installed (a CUDA torch requires it)",
            env.site_packages.join(", "),
        );
    }
    let jetson = machine.kind == MachineKind::Jetson;
    Some(
        draft
            .cause(cause(env, &torch, arm, jetson))
            .fix(fix(machine, env, Some(&torch.version)))
            .finish(),
    )
}

fn cause(env: &PyEnv, torch: &Installed, arm: bool, jetson: bool) -> String {
    let why = if live_dist(env, "torch").is_some_and(by_conda) {
        "conda chose its CPU build, as it does where it sees no GPU while it resolves."
    } else if jetson {
        "The aarch64 wheels on PyPI are for servers (and up to 2.10 without CUDA); NVIDIA publishes Jetson's itself."
    } else if arm && torch.version.minor() <= (2, 10) {
        "The aarch64 wheels of torch 2.10 and older on PyPI have no CUDA; PyTorch's own index has those that do."
    } else if torch.version.local.as_deref() == Some("cpu") {
        "It was installed from PyTorch's index for CPUs (its label is +cpu)."
    } else {
        "It was built or installed without CUDA."
    };
    format!(
        "{why} Triton's \"not supported on current platform\" has this same cause and goes away with it."
    )
}

fn fix(machine: &Machine, env: &PyEnv, version: Option<&Version>) -> Vec<RemedyStep> {
    let installer = Installer::of(env);
    match choose(machine, env, version) {
        Some(choice) => {
            let mut lines = installer.replace_torch(&choice);
            lines.push(format!(
                "{} -c {}",
                installer.python(),
                quote("import torch; print(torch.version.cuda, torch.cuda.is_available())")
            ).into());
            lines
        }
        None if machine.kind == MachineKind::Jetson => vec![
            installer.uninstall(&["torch"]),
            "# then install NVIDIA's torch wheel for this JetPack release: server Arm wheels do not run here".into(),
        ],
        None => vec![
            installer.uninstall(&["torch"]),
            "# no published CUDA wheel fits this GPU, driver and Python together; see the other findings".into(),
        ],
    }
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let mut rocm = env("/v").torch("2.9.0+rocm6.4", None).build();
        if let Some(torch) = rocm.torch.as_mut() {
            torch.hip = Some("6.4".into());
        }
        let cpu = |version: &str| vec![env("/p/.venv").uv().torch(version, None).build()];
        vec![
            Case::new("the GH200 of row R0-03", machines::gh200(), cpu("2.9.0+cpu")).finds(
                Error,
                Certain,
                &[
                    "torch 2.9.0+cpu in /p/.venv is a CPU-only build; the NVIDIA GH200 480GB",
                    "cuda = None [/p/.venv/lib/python3.12/site-packages/torch/version.py]",
                    "compute capability 9.0",
                    "aarch64 wheels of torch 2.10 and older on PyPI have no CUDA",
                    "triton is not installed",
                    "not supported on current platform",
                    "uv pip uninstall --python /p/.venv/bin/python torch",
                    "torch==2.9.0 --index-url https://download.pytorch.org/whl/cu128",
                ],
            ),
            Case::new(
                "a +cpu wheel and its torchvision on x86-64",
                machines::a10(),
                vec![env("/v").torch("2.8.0+cpu", None).dist("torchvision", "0.23.0").build()],
            )
            .finds(
                Error,
                Certain,
                &[
                    "index for CPUs",
                    "/v/bin/python -m pip uninstall --yes torch torchvision",
                    "torch==2.8.0 'torchvision==0.23.*' --index-url https://download.pytorch.org/whl/cu128",
                ],
            ),
            Case::new(
                "conda's CPU build",
                machines::a10(),
                vec![env("/opt/c").conda().torch("2.9.1", None).installer("torch", "conda").build()],
            )
            .finds(Error, Certain, &["conda chose its CPU build", "conda install --prefix /opt/c"]),
            Case::new(
                "a Jetson needs NVIDIA's wheel, not the server's",
                machines::jetson_orin(),
                vec![env("/v").python("3.10.12").torch("2.9.1", None).build()],
            )
            .finds(Error, Certain, &["NVIDIA publishes Jetson's itself", "NVIDIA's torch wheel for this JetPack release"])
            .without(&["--index-url"]),
            Case::new("GB10", machines::gb10(), cpu("2.10.0")).finds(
                Error,
                Certain,
                &["torch==2.10.0 --index-url https://download.pytorch.org/whl/cu130"],
            ),
            Case::new("no GPU", machines::x86(), cpu("2.9.0+cpu")),
            Case::new("macOS has no CUDA torch", machines::m3_max(), cpu("2.9.0")),
            Case::new(
                "a CUDA build",
                machines::gh200(),
                vec![env("/v").torch("2.11.0+cu128", Some("12.8")).build()],
            ),
            Case::new("ROCm is a choice", machines::a10(), vec![rocm]),
            Case::new("no torch at all", machines::a10(), vec![env("/v").build()]),
        ]
    }
}
