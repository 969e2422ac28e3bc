use super::{Context, Need, Rule, Text};
use crate::remedy::Installer;
use crate::torch_build::{by_conda, is_leftover};
use facts::{Confidence, Dist, EnvKind, Finding, PyEnv, RemedyStep, Severity};

pub(super) const RULE: Rule = Rule {
    id: "conda-pip-mix",
    title: "conda and pip both installed parts of the GPU stack",
    about: "\
conda and pip keep separate records. conda does not know what pip installed, so a later `conda install` may replace the
torch, numpy or CUDA libraries that pip's packages use; and pip wheels are compiled against PyPI's torch, not conda's.

It shows as
  undefined symbol: _ZN3c10...
from an extension, as
  OMP: Error #15: Initializing libiomp5.so, but found libomp.so already initialized.
and as packages that change version unexpectedly.

Detected in the INSTALLER file of each distribution in an environment with conda-meta.

Install the compiled GPU packages (torch, torchvision, triton, flash-attn and the like) with only one of the two. The
stable split is conda for Python and compilers, and pip or uv for torch and everything built on it, since PyTorch
publishes no conda packages after 2.5. Install with conda first and with pip last.",
    links: &["https://github.com/pytorch/pytorch/issues/138506"],
    texts: &[Text::new("OMP: Error #15: Initializing *, but found * already initialized", "OMP: Error #15: Initializing libiomp5.so, but found libomp.so already initialized.")],
    remedy: |seen| vec![format!("{} -m pip check", seen.installer().python())],
    needs: &[Need::Environment],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// Packages that are compiled against torch or contain its GPU libraries.
const STACK: [&str; 15] = [
    "apex",
    "bitsandbytes",
    "causal-conv1d",
    "deepspeed",
    "flash-attn",
    "flashinfer-python",
    "mamba-ssm",
    "torch",
    "torchaudio",
    "torchvision",
    "transformer-engine",
    "triton",
    "vllm",
    "xformers",
    "torch-scatter",
];

fn in_stack(name: &str) -> bool {
    STACK.contains(&name) || (name.starts_with("nvidia-") && name != "nvidia-ml-py")
}

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().filter_map(judge).collect()
}

fn judge(env: &PyEnv) -> Option<Finding> {
    if env.kind != EnvKind::Conda {
        return None;
    }
    let by_pip = |dist: &&Dist| {
        dist.installer.as_deref().is_some_and(|word| matches!(word.trim(), "pip" | "uv"))
    };
    let live = || env.dists.iter().filter(|dist| !is_leftover(dist));
    let stack = || live().filter(|dist| in_stack(&Dist::normalise(&dist.name)));
    let conda_stack: Vec<&Dist> = stack().filter(|dist| by_conda(dist)).collect();
    let pip_stack: Vec<&Dist> = stack().filter(by_pip).collect();
    let pip_all = live().filter(by_pip).count();
    let conda_all = live().filter(|dist| by_conda(dist)).count();
    let names = |dists: &[&Dist]| {
        let names: Vec<String> =
            dists.iter().map(|dist| format!("{} {}", dist.name, dist.version)).collect();
        names.join(", ")
    };
    let source = format!("INSTALLER in {}", env.site_packages.join(", "));
    if !conda_stack.is_empty() && !pip_stack.is_empty() {
        let remove: Vec<&str> = conda_stack.iter().map(|dist| dist.name.as_str()).collect();
        let torch_by_conda = conda_stack.iter().any(|dist| Dist::normalise(&dist.name) == "torch");
        let finding = RULE
            .finding(
                Severity::Warning,
                Confidence::Likely,
                format!("the GPU packages in {} come from conda and from pip", env.root),
            )
            .evidence(format!("by conda: {}", names(&conda_stack)), source.clone())
            .evidence(format!("by pip: {}", names(&pip_stack)), source)
            .cause(match torch_by_conda {
                true => {
                    "pip's packages were built against PyPI's torch, but the torch here is conda's; their ABIs may \
                     differ."
                }
                false => {
                    "conda does not know pip's packages and may replace libraries they use at its next install."
                }
            })
            .fix(fix(env, &remove, &pip_stack, torch_by_conda))
            .finish();
        return Some(finding);
    }
    // Every conda environment has pip, setuptools and wheel from conda: that is not a mix.
    if pip_all == 0 || conda_all <= 3 {
        return None;
    }
    let finding = RULE
        .finding(
            Severity::Info,
            Confidence::Certain,
            format!("{} has {conda_all} Python packages from conda and {pip_all} from pip", env.root),
        )
        .evidence(format!("{conda_all} by conda, {pip_all} by pip or uv"), source)
        .cause(
            "The GPU packages come from only one of the two, which is stable; conda does not know pip's packages, so \
             install with conda first and with pip last.",
        )
        .finish();
    Some(finding)
}

fn fix(env: &PyEnv, conda: &[&str], pip: &[&Dist], torch_by_conda: bool) -> Vec<RemedyStep> {
    let installer = Installer::of(env);
    let prefix = crate::remedy::quote(&env.root);
    let packages: Vec<&str> =
        conda.iter().map(|name| if *name == "torch" { "pytorch" } else { *name }).collect();
    let mut lines = vec![
        "# use conda for the interpreter and compilers, pip for the GPU packages:".into(),
        format!("conda remove --prefix {prefix} --force {}", packages.join(" ")).into(),
    ];
    let mut specs: Vec<String> = Vec::new();
    let torch = env.torch.as_ref().and_then(|torch| knowledge::Version::parse(&torch.version));
    if let Some(version) = torch.filter(|version| torch_by_conda && version.is_final()) {
        specs.push(format!("torch=={}", version.public()));
    }
    let others = conda.iter().filter(|name| **name != "torch").map(|name| (*name).to_owned());
    specs.extend(others);
    if !specs.is_empty() {
        lines.push(installer.install(&specs, None));
    }
    if torch_by_conda {
        let rebuilt: Vec<&str> = pip.iter().map(|dist| dist.name.as_str()).collect();
        lines.push(
            format!("# then install again, against that torch: {}", rebuilt.join(" ")).into(),
        );
    }
    lines
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let conda_torch = env("/opt/c")
            .conda()
            .torch("2.9.1", Some("12.9"))
            .installer("torch", "conda")
            .dist("flash-attn", "2.8.3")
            .installer("flash-attn", "pip")
            .build();
        let pip_torch = env("/opt/c")
            .conda()
            .torch("2.9.1+cu128", Some("12.8"))
            .installer("torch", "pip")
            .dist("torchvision", "0.24.1")
            .installer("torchvision", "conda")
            .build();
        let lasting = ["pip", "setuptools", "wheel", "numpy"]
            .into_iter()
            .fold(env("/opt/c").conda(), |env, name| env.dist(name, "1.0").installer(name, "conda"))
            .torch("2.9.1+cu128", Some("12.8"))
            .installer("torch", "pip")
            .build();
        let bare = env("/opt/c")
            .conda()
            .dist("pip", "25.0")
            .installer("pip", "conda")
            .torch("2.9.1+cu128", Some("12.8"))
            .installer("torch", "pip")
            .build();
        let conda_only = env("/opt/c")
            .conda()
            .torch("2.9.1", Some("12.9"))
            .installer("torch", "conda")
            .dist("triton", "3.5.1")
            .installer("triton", "conda")
            .build();
        let venv = env("/v")
            .torch("2.9.1", Some("12.8"))
            .installer("torch", "conda")
            .dist("triton", "3.5.1")
            .installer("triton", "pip")
            .build();
        vec![
            Case::new(
                "row R2-07: pip's flash-attn on conda's torch",
                machines::a10(),
                vec![conda_torch],
            )
            .finds(
                Warning,
                Likely,
                &[
                    "the GPU packages in /opt/c come from conda and from pip",
                    "by conda: torch 2.9.1",
                    "by pip: flash-attn 2.8.3",
                    "conda remove --prefix /opt/c --force pytorch",
                    "/opt/c/bin/python -m pip install torch==2.9.1",
                    "# then install again, against that torch: flash-attn",
                ],
            ),
            Case::new("torchvision from conda, torch from pip", machines::a10(), vec![pip_torch])
                .finds(Warning, Likely, &["--force torchvision", "pip install torchvision"]),
            Case::new("conda for the base, pip for torch", machines::a10(), vec![lasting]).finds(
                Info,
                Certain,
                &["4 Python packages from conda and 1 from pip"],
            ),
            Case::new("an interpreter from conda, the rest from pip", machines::a10(), vec![bare]),
            Case::new("conda alone", machines::a10(), vec![conda_only]),
            Case::new("not a conda environment", machines::a10(), vec![venv]),
        ]
    }
}
