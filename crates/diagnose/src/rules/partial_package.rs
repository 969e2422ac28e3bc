use super::{Context, Need, Rule};
use crate::explain::PARTS;
use crate::remedy::Installer;
use crate::torch_build::live_dist;
use facts::{Confidence, Finding, PyEnv, Severity};

pub(super) const RULE: Rule = Rule {
    id: "partial-package",
    title: "a package with only a part of another package's modules is installed alone",
    about: "\
Some distributions contain only a part of another distribution's import package: flash-attn-4 has only flash_attn.cute.
If the full package is not installed, Python finds its folder without an __init__.py (a namespace package), and every
other name in it is missing.

It shows as
  ImportError: cannot import name 'flash_attn_func' from 'flash_attn' (unknown location)

Detected in the list of installed distributions.

Install the full package next to it, or import only from the part.",
    links: &["https://github.com/Dao-AILab/flash-attention/tree/main/flash_attn/cute"],
    remedy: |seen| vec![seen.installer().install(&["flash-attn".into()], None).into()],
    needs: &[Need::Environment],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// Packages that import the full package if they find its name.
const IMPORTERS: [&str; 5] = ["transformers", "diffusers", "vllm", "sglang", "megatron-core"];

fn check(context: &Context) -> Vec<Finding> {
    let of = |env: &PyEnv| -> Vec<Finding> {
        PARTS.iter().filter_map(|(part, whole, what)| finding(env, part, whole, what)).collect()
    };
    context.envs.iter().flat_map(of).collect()
}

fn finding(env: &PyEnv, part: &str, whole: &str, what: &str) -> Option<Finding> {
    let dist = live_dist(env, part)?;
    let importer = IMPORTERS.iter().find_map(|name| live_dist(env, name))?;
    if live_dist(env, whole).is_some() {
        return None;
    }
    let title = format!(
        "{} {} in {} has {what} alone: what imports another name of {whole} does not find it",
        dist.name, dist.version, env.root
    );
    let package = whole.replace('_', "-");
    let draft = RULE
        .finding(Severity::Info, Confidence::Certain, title)
        .evidence(format!("{} {}", dist.name, dist.version), dist.path.clone())
        .evidence(format!("{} {}", importer.name, importer.version), importer.path.clone())
        .cause(format!(
            "{part} and {package} share the folder {whole}, and {package} is not installed."
        ));
    Some(draft.fix(vec![Installer::of(env).install(&[package], None)]).finish())
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence, Severity};

    pub(super) fn cases() -> Vec<Case> {
        let with = || env("/v").dist("flash_attn_4", "4.0.0").dist("transformers", "5.24.0");
        vec![
            Case::new("next to transformers", machines::x86(), vec![with().build()]).finds(
                Severity::Info,
                Confidence::Certain,
                &["flash_attn.cute", "flash_attn_4 4.0.0", "transformers 5.24.0", "flash-attn"],
            ),
            Case::new(
                "the whole package too",
                machines::x86(),
                vec![with().dist("flash_attn", "2.8.3").build()],
            ),
            Case::new(
                "nothing that imports it",
                machines::x86(),
                vec![env("/v").dist("flash_attn_4", "4.0.0").build()],
            ),
        ]
    }
}
