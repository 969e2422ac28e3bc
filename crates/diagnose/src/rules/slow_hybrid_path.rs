use super::{Observation, PastedError, Rule, Text};
use crate::remedy::text;
use crate::torch_build::live_dist;
use facts::{PyEnv, RemedyStep};
pub(super) const RULE: Rule = Rule {
    id: "slow-hybrid-path",
    title: "a hybrid model on its slow path: a kernel package is missing",
    about: "\
transformers runs Mamba and linear-attention layers with optimized kernels (causal-conv1d, mamba-ssm,
flash-linear-attention) if all kernels of a layer can be imported. Otherwise it runs a sequential PyTorch loop that is
many times slower, with one warning in the log or none. The results are correct, but slow.

It shows as
  The fast path is not available because one of `(selective_state_update, causal_conv1d_fn, ...)` is None
and in newer releases as
  ... is falling back to its reference PyTorch implementation because `causal_conv1d` is not installed

Detected in the list of installed packages; `firstlight doctor --model DIR` names the packages that a model needs.

Install the missing packages, built against the installed torch.",
    links: &[
        "https://github.com/huggingface/transformers/pull/40765",
    ],
    texts: &[
        Text::new("The fast path is not available because one of", "The fast path is not available because one of `(selective_state_update, causal_conv1d_fn, causal_conv1d_update)` is None. Falling back to the naive implementation. To install follow https://github.com/state-spaces/mamba/#installation and https://github.com/Dao-AILab/causal-conv1d"),
        Text::new("The fast path is not available because one of the required library is not installed", "The fast path is not available because one of the required library is not installed. Falling back to torch implementation. To install follow https://github.com/fla-org/flash-linear-attention#installation and https://github.com/Dao-AILab/causal-conv1d"),
        Text::new("is falling back to its reference PyTorch implementation because", "`causal_conv1d_fn` is falling back to its reference PyTorch implementation because `causal_conv1d` is not installed"),
    ],
    role: super::Role::Notice,
    remedy: |seen| text(commands(seen)),
    observe: Some(observe),
    ..Rule::BLANK
};

/// The packages that the names in the warning come from.
const NAMES: [(&str, &str); 9] = [
    ("selective_state_update", "mamba-ssm"),
    ("selective_scan_fn", "mamba-ssm"),
    ("mamba_inner_fn", "mamba-ssm"),
    ("mamba_chunk_scan_combined", "mamba-ssm"),
    ("mamba_split_conv1d_scan_combined", "mamba-ssm"),
    ("causal_conv1d", "causal-conv1d"),
    ("chunk_gated_delta_rule", "flash-linear-attention"),
    ("flash-linear-attention", "flash-linear-attention"),
    ("mamba_ssm", "mamba-ssm"),
];

/// The packages that the warning names, causal-conv1d first, because mamba-ssm uses it at build and at import.
fn named(text: &str) -> Vec<&'static str> {
    ["causal-conv1d", "mamba-ssm", "flash-linear-attention"]
        .into_iter()
        .filter(|package| NAMES.iter().any(|(name, its)| its == package && text.contains(name)))
        .collect()
}

fn missing(seen: &PastedError, env: &PyEnv) -> Vec<&'static str> {
    let named = named(seen.text);
    let named = if named.is_empty() { vec!["causal-conv1d", "mamba-ssm"] } else { named };
    named.into_iter().filter(|package| live_dist(env, package).is_none()).collect()
}

fn observe(seen: &PastedError) -> Option<Observation> {
    let env = seen.env()?;
    let missing = missing(seen, env);
    let place = env.site_packages.join(", ");
    Some(match missing.is_empty() {
        true => Observation::new(false, "every package the warning names is installed", place),
        false => Observation::new(true, format!("{} not installed", missing.join(" and ")), place),
    })
}

fn commands(seen: &PastedError) -> Vec<RemedyStep> {
    let missing = match seen.env() {
        Some(env) => missing(seen, env),
        None => named(seen.text),
    };
    // Installed packages that do not work were built for another torch, or lack their compiled file.
    let wanted = if missing.is_empty() { vec!["causal-conv1d", "mamba-ssm"] } else { missing };
    let installer = seen.installer();
    let stand_in = wanted.first().and_then(|package| installer.stand_in(package));
    let build = wanted.iter().map(|package| match *package {
        "flash-linear-attention" => installer.install(&[(*package).into()], None),
        package => installer.build(&[package]),
    });
    stand_in.map(RemedyStep::from).into_iter().chain(build).collect()
}

#[cfg(test)]
mod tests {
    use crate::test_support::{env, machines};

    #[test]
    fn names_missing_packages() {
        let check = |tail: &str, packages: &[&str], expect: Option<bool>, named: &[&str]| {
            let text = format!("The fast path is not available because one of {tail}");
            let mut env = env("/v").torch("2.9.1+cu128", Some("12.8"));
            for package in packages {
                env = env.dist(package, "1.0");
            }
            let found = &crate::explain(&text, &machines::a10(), &[env.build()])[0];
            assert_eq!(found.rule.id, "slow-hybrid-path");
            assert_eq!(found.confirmed_here, expect, "{tail}");
            // Explanatory lines precede the commands, if there are any.
            let beside =
                |line: &&String| line.contains("/v/bin/python -m firstlight run SCRIPT.py");
            assert_eq!(found.fix.iter().filter(beside).count(), usize::from(!named.is_empty()));
            let commands: Vec<_> = found.fix.iter().filter(|line| !beside(line)).collect();
            assert_eq!(commands.len(), named.len(), "{:?}", found.fix);
            for (line, name) in commands.iter().zip(named) {
                assert!(line.ends_with(name), "{line}");
            }
        };
        let granite = "`(selective_state_update, causal_conv1d_fn, causal_conv1d_update)` is None";
        check(granite, &["mamba-ssm"], Some(true), &["causal-conv1d"]);
        check(granite, &["causal-conv1d"], Some(true), &["mamba-ssm"]);
        check(granite, &[], Some(true), &["causal-conv1d", "mamba-ssm"]);
        check(granite, &["causal-conv1d", "mamba-ssm"], Some(false), &[]);
        let qwen = "the required library is not installed. To install follow github.com/fla-org/flash-linear-attention and \
                    github.com/Dao-AILab/causal-conv1d causal_conv1d";
        check(qwen, &["causal-conv1d"], Some(true), &["flash-linear-attention"]);
    }
}
