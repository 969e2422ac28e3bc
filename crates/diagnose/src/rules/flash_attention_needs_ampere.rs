use super::{Context, Need, Rule, Text};
use crate::gpu;
use crate::remedy::Installer;
use crate::torch_build::live_dist;
use facts::{Confidence, Finding, Machine, PyEnv, Severity};
use knowledge::dotted;
pub(super) const RULE: Rule = Rule {
    id: "flash-attention-needs-ampere",
    title: "flash-attn on a GPU older than Ampere",
    about: "\
FlashAttention 2 uses instructions of compute capability 8.0 (Ampere) and later: on Turing (7.5: T4, RTX 20) and Volta
(7.0: V100) it installs and imports, and raises an error at the first call. No build of it supports them.

It shows as
  RuntimeError: FlashAttention only supports Ampere GPUs or newer.

Detected by comparing the GPU's compute capability with 8.0 where flash-attn is installed.

Use PyTorch's own attention (attn_implementation=\"sdpa\" in transformers), whose memory-efficient kernel runs on these
GPUs; vLLM uses its Triton or xFormers backend there.",
    links: &[
        "https://github.com/Dao-AILab/flash-attention/issues/762",
    ],
    texts: &[
        Text::new("FlashAttention only supports Ampere GPUs or newer", "RuntimeError: FlashAttention only supports Ampere GPUs or newer."),
    ],
    remedy: |seen| {
        let python = seen.installer().python();
        vec![
            "# load the model with attn_implementation=\"sdpa\"; flash-attn can be removed:".into(),
            seen.installer().uninstall(&["flash-attn"]).into(),
            format!("{python} -m pip check"),
        ]
    },
    needs: &[Need::Gpu, Need::Package("flash-attn")],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().filter_map(|env| judge(context.machine, env)).collect()
}

fn judge(machine: &Machine, env: &PyEnv) -> Option<Finding> {
    let dist = live_dist(env, "flash-attn")?;
    let gpus = gpu::capabilities(machine);
    let (old, sm) = gpus.iter().find(|(_, sm)| *sm < (8, 0))?;
    // With an Ampere or newer GPU in the machine too, the package is useful, and which GPU a program uses is unknown.
    let severity =
        if gpus.iter().all(|(_, sm)| *sm < (8, 0)) { Severity::Error } else { Severity::Warning };
    let finding = RULE
        .finding(
            severity,
            Confidence::Certain,
            format!(
                "flash-attn {} in {} does not run on the {} ({})",
                dist.version,
                env.root,
                old.name.value,
                dotted(*sm)
            ),
        )
        .evidence(gpu::describe(old), old.name.source.clone())
        .evidence(format!("flash-attn {}", dist.version), dist.path.clone())
        .cause("FlashAttention 2 requires compute capability 8.0 or higher.")
        .fix([
            "# load models with attn_implementation=\"sdpa\"; flash-attn can be removed:".into(),
            Installer::of(env).uninstall(&["flash-attn"]),
        ])
        .finish();
    Some(finding)
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, PyEnv, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let flash = || -> Vec<PyEnv> { vec![env("/v").dist("flash-attn", "2.8.3").build()] };
        let t4 = || machines::x86_with("Tesla T4", (7, 5), "570.148.08", (12, 8));
        let mut both = t4();
        both.gpus.push(machines::gpu("NVIDIA A10", (8, 6), 23_028));
        vec![
            Case::new("a T4", t4(), flash()).finds(
                Error,
                Certain,
                &[
                    "flash-attn 2.8.3 in /v does not run on the Tesla T4 (7.5)",
                    "sdpa",
                    "pip uninstall --yes flash-attn",
                ],
            ),
            Case::new("a T4 and an A10", both, flash()).finds(Warning, Certain, &["Tesla T4"]),
            Case::new("an A10", machines::a10(), flash()),
            Case::new("a T4 without flash-attn", t4(), vec![env("/v").build()]),
        ]
    }
}
