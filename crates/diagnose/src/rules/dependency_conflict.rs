use super::{Context, Need, Rule, Text};
use crate::remedy::Installer;
use crate::requirement::Requirement;
use crate::torch_build::live_dist;
use crate::wants::wants;
use facts::{Confidence, Dist, Finding, Machine, PyEnv, Severity};
use knowledge::Version;
pub(super) const RULE: Rule = Rule {
    id: "dependency-conflict",
    title: "an installed package does not satisfy what another one requires",
    about: "\
Two packages want different versions of a third, and the last install won. It often comes from an index that was meant
for torch alone: PyTorch's index also has old copies of requests, urllib3, certifi, idna and others, and an installer
told to take it as a further index, or its first match, brings requests 2.28.1 in place of a newer one from PyPI.

It shows as
  datasets 4.0.0 requires requests>=2.32.2, but you have requests 2.28.1 which is incompatible.

Seen by comparing the versions that METADATA asks for with those installed.

Install the wanted version from PyPI, and name PyTorch's index for torch only (uv: an explicit index; pip: --index-url
for one command). An unsafe-best-match strategy mixes indexes and invites dependency confusion.",
    links: &[
        "https://docs.astral.sh/uv/concepts/indexes/",
    ],
    texts: &[
        Text {
            pattern: "requires {wanted}, but you have {name} * which is incompatible",
            sample: "ERROR: pip's dependency resolver does not currently take into account all the packages that are installed. This behaviour is the source of the following dependency conflicts.
datasets 4.0.0 requires requests>=2.32.2, but you have requests 2.28.1 which is incompatible.",
        },
        Text {
            pattern: "pip's dependency resolver does not currently take into account all the packages that are installed",
            sample: "\
ERROR: pip's dependency resolver does not currently take into account all the packages that are installed.
This behaviour is the source of the following dependency conflicts.",
        },
        Text {
            pattern: "The package `*` requires `*`, but `*` is installed",
            sample: "The package `datasets` requires `requests>=2.32.2`, but `2.28.1` is installed",
        },
    ],
    role: super::Role::Notice,
    remedy: |seen| {
        let installer = seen.installer();
        let wanted = seen.word("wanted").map(str::to_owned);
        match wanted {
            Some(wanted) => vec![installer.install(&[wanted], None)],
            None => vec![check_command(&installer)],
        }
    },
    needs: &[Need::Environment],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// Packages other than torch's own on PyTorch's index, with the version that is newest there.
/// Source: a field report for requests; for the others, public pip logs that name the files taken from that index.
const ON_PYTORCH_INDEX: [(&str, &str); 5] = [
    ("requests", "2.28.1"),
    ("urllib3", "1.26.13"),
    ("certifi", "2022.12.7"),
    ("charset-normalizer", "2.1.1"),
    ("idna", "3.4"),
];

/// Packages whose pairing with each other is judged by a rule of its own, with better words.
const OWN_RULES: [&str; 4] = ["torch", "torchvision", "torchaudio", "triton"];

/// Whether that rule judges this line: torchvision's torch, torch's triton, but not what vllm or xformers pin.
fn has_own_rule(dist: &Dist, wanted: &Requirement) -> bool {
    let own = |name: &str| OWN_RULES.contains(&name);
    own(&Dist::normalise(&dist.name)) && own(&wanted.name)
}

fn check_command(installer: &Installer) -> String {
    match installer.uv() {
        true => format!("uv pip check --python {}", installer.python()),
        false => format!("{} -m pip check", installer.python()),
    }
}

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().filter_map(|env| judge(context.machine, env)).collect()
}

fn conflicts<'a>(machine: &Machine, env: &'a PyEnv) -> Vec<(&'a Dist, Requirement, &'a Dist)> {
    let all = wants(machine, env).into_iter().map(|want| (want.dist, want.wanted));
    all.filter(|(dist, wanted)| !has_own_rule(dist, wanted))
        .filter_map(|(dist, wanted)| {
            let installed = live_dist(env, &wanted.name)?;
            let version = Version::parse(&installed.version).filter(Version::is_final)?;
            (wanted.allows(&version) == Some(false)).then_some((dist, wanted, installed))
        })
        .collect()
}

/// The installed version as a requirement, without the label of the index it came from.
fn kept(installed: &Dist) -> String {
    let public = installed.version.split('+').next().unwrap_or_default();
    format!("{}=={public}", installed.name)
}

fn judge(machine: &Machine, env: &PyEnv) -> Option<Finding> {
    let conflicts = conflicts(machine, env);
    let (first, wanted, installed) = conflicts.first()?;
    let more = match conflicts.len() {
        1 => String::new(),
        count => format!(", and {} more", count - 1),
    };
    let mut draft = RULE.finding(
        Severity::Warning,
        Confidence::Certain,
        format!(
            "{} {} requires {}{}, but {} is installed in {}{more}",
            first.name,
            first.version,
            wanted.name,
            wanted.constraint(),
            installed.version,
            env.root
        ),
    );
    let mut specs = Vec::new();
    let mut from_index = Vec::new();
    // One screen: what a dozen conflicts have in common is seen in the first of them.
    for (dist, wanted, installed) in conflicts.iter().take(12) {
        draft = draft
            .evidence(
                format!("{} {}: Requires-Dist: {}", dist.name, dist.version, wanted.line),
                format!("{}/METADATA", dist.path),
            )
            .evidence(format!("{} {}", installed.name, installed.version), installed.path.clone());
        // torch is what everything compiled here was made for: what wants another one is what has to change.
        let wants = match OWN_RULES.contains(&wanted.name.as_str()) {
            true => vec![dist.name.clone(), kept(installed)],
            false => vec![format!("{}{}", wanted.name, wanted.constraint())],
        };
        specs.extend(wants.into_iter().filter(|spec| !specs.contains(spec)).collect::<Vec<_>>());
        if ON_PYTORCH_INDEX.contains(&(wanted.name.as_str(), installed.version.as_str())) {
            from_index.push(format!("{} {}", wanted.name, installed.version));
        }
    }
    let cause = if from_index.is_empty() {
        "The last install changed a version that another package still needs.".to_owned()
    } else {
        from_index.dedup();
        format!(
            "{} is what PyTorch's index (download.pytorch.org/whl) has: it was taken from there instead of from PyPI.",
            from_index.join(", ")
        )
    };
    let installer = Installer::of(env);
    Some(
        draft.cause(cause).fix([installer.install(&specs, None), check_command(&installer)]).done(),
    )
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, PyEnv, Severity::*};

    fn with(requests: &str, line: &str) -> Vec<PyEnv> {
        vec![
            env("/v")
                .uv()
                .dist("requests", requests)
                .dist("datasets", "4.0.0")
                .requires("datasets", line)
                .build(),
        ]
    }

    pub(super) fn cases() -> Vec<Case> {
        vec![
            Case::new("row R1-06", machines::h200(), with("2.28.1", "requests>=2.32.2")).finds(
                Warning,
                Certain,
                &[
                    "datasets 4.0.0 requires requests>=2.32.2, but 2.28.1 is installed in /v",
                    "Requires-Dist: requests>=2.32.2 [/v/lib/python3.12/site-packages/datasets-4.0.0.dist-info/METADATA]",
                    "requests 2.28.1 is what PyTorch's index (download.pytorch.org/whl) has",
                    "uv pip install --python /v/bin/python 'requests>=2.32.2'",
                    "uv pip check --python /v/bin/python",
                ],
            ),
            Case::new("from somewhere else", machines::h200(), with("2.30.0", "requests>=2.32.2"))
                .finds(Warning, Certain, &["The last install changed"])
                .without(&["PyTorch's index"]),
            Case::new("satisfied", machines::h200(), with("2.32.5", "requests>=2.32.2")),
            Case::new("an extra's", machines::h200(), with("2.28.1", "requests>=2.32.2 ; extra == 'net'")),
            Case::new("a marker for another Python", machines::h200(), with("2.28.1", "requests>=2.32.2 ; python_version < '3.9'")),
            Case::new("a marker for another processor", machines::h200(), with("2.28.1", "requests>=2.32.2 ; platform_machine == 'aarch64'")),
            Case::new("a marker that holds", machines::h200(), with("2.28.1", "requests>=2.32.2 ; platform_system == 'Linux' and python_version < '3.15'"))
                .finds(Warning, Certain, &["requires requests>=2.32.2, but 2.28.1 is installed"]),
            Case::new("torch's own pin of a CUDA library", machines::h200(), vec![
                env("/v")
                    .torch("2.8.0+cu128", Some("12.8"))
                    .requires("torch", "nvidia-nccl-cu12==2.27.3; platform_system == \"Linux\" and platform_machine == \"x86_64\"")
                    .dist("nvidia-nccl-cu12", "2.21.5")
                    .build(),
            ])
            .finds(Warning, Certain, &["torch 2.8.0 requires nvidia-nccl-cu12==2.27.3, but 2.21.5 is installed in /v"]),
            Case::new("a version nobody can compare", machines::h200(), with("unknown", "requests>=2.32.2")),
            Case::new("torch is kept, and what wants another one changes", machines::h200(), vec![
                env("/v").dist("torch", "2.5.1").dist("vllm", "0.33").requires("vllm", "torch==2.14.0").build(),
            ])
            .finds(
                Warning,
                Certain,
                &["vllm 0.33 requires torch==2.14.0, but 2.5.1 is installed", "install vllm torch==2.5.1"],
            ),
            Case::new("torch's own companions have a rule of their own", machines::h200(), vec![
                env("/v").dist("torch", "2.5.1").dist("torchvision", "0.19").requires("torchvision", "torch==2.4.0").build(),
            ]),
        ]
    }
}
