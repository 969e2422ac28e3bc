use super::{Context, Need, Rule, Text};
use crate::dist_requirements::applicable_requirements;
use crate::remedy::Installer;
use crate::requirement::{self, Requirement};
use crate::torch_build::live_dist;
use facts::CompactSort;
use facts::{Confidence, Dist, Finding, Machine, PyEnv, Severity};
use knowledge::Version;
use std::cmp::Ordering;
pub(super) const RULE: Rule = Rule {
    id: "dependency-conflict",
    title: "an installed package does not satisfy what another one requires",
    about: "\
Two packages require different versions of a third, and the last install won. A common cause is PyTorch's index, which
also has old copies of requests, urllib3, certifi, idna and others: with it as an extra index, an installer can choose
its requests 2.28.1 instead of a newer one from PyPI.

It shows as
  datasets 4.0.0 requires requests>=2.32.2, but you have requests 2.28.1 which is incompatible.

Detected by comparing the requirements in METADATA with the installed versions. Most packages run anyway, so the finding
is a warning; for a package that checks versions at import (transformers, jax) it is an error.

Install the required version from PyPI, and use PyTorch's index for torch only (uv: an explicit index; pip: --index-url
for one command). uv's unsafe-best-match strategy mixes indexes and allows dependency confusion.",
    links: &[
        "https://docs.astral.sh/uv/concepts/indexes/",
    ],
    texts: &[
        Text::new("requires {wanted}, but you have {name} * which is incompatible", "ERROR: pip's dependency resolver does not currently take into account all the packages that are installed. This behaviour is the source of the following dependency conflicts.
datasets 4.0.0 requires requests>=2.32.2, but you have requests 2.28.1 which is incompatible."),
        Text::new("pip's dependency resolver does not currently take into account all the packages that are installed", "\
ERROR: pip's dependency resolver does not currently take into account all the packages that are installed.
This behaviour is the source of the following dependency conflicts."),
        Text::new("is required for a normal functioning of this module, but found {name}", "ImportError: huggingface-hub>=0.34.0,<1.0 is required for a normal functioning of this module, but found huggingface-hub==1.2.3."),
        Text::new("jaxlib is version *, but this version of jax requires version", "RuntimeError: jaxlib is version 0.4.38, but this version of jax requires version >= 0.6.2."),
        // https://github.com/jax-ml/jax/issues/17638
        Text::new("jaxlib version * is newer than and incompatible with jax version", "RuntimeError: jaxlib version 0.4.14 is newer than and incompatible with jax version 0.4.6. Please update your jax and/or jaxlib packages."),
        // https://github.com/CEXT-Dan/PyRx/issues/539
        Text::new("The installed pydantic-core version * is incompatible with the current pydantic version", "SystemError: The installed pydantic-core version (2.47.0) is incompatible with the current pydantic version, which requires 2.46.4. If you encounter this error, make sure that you haven't upgraded pydantic-core manually."),
        Text::new("cannot import name 'runtime_version' from 'google.protobuf'", "ImportError: cannot import name 'runtime_version' from 'google.protobuf' (/v/lib/python3.11/site-packages/google/protobuf/__init__.py)"),
        Text::new("The package `*` requires `*`, but `*` is installed", "The package `datasets` requires `requests>=2.32.2`, but `2.28.1` is installed"),
    ],
    role: super::Role::Notice,
    remedy: |seen| {
        let installer = seen.installer();
        let named = || {
            let (before, _) = seen.text.split_once(" is required for a normal functioning")?;
            before.rsplit(' ').next().filter(|word| requirement::parse(word).is_some())
        };
        let wanted = seen.word("wanted").or_else(named).map(str::to_owned);
        match wanted {
            Some(wanted) => vec![installer.install(&[wanted], None).into()],
            None => vec![installer.check().into()],
        }
    },
    needs: &[Need::Environment],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// Third-party packages on PyTorch's index, with the newest version there.
/// Source: a field report for requests; for the others, public pip logs that name the files taken from that index.
const ON_PYTORCH_INDEX: [(&str, &str); 5] = [
    ("requests", "2.28.1"),
    ("urllib3", "1.26.13"),
    ("certifi", "2022.12.7"),
    ("charset-normalizer", "2.1.1"),
    ("idna", "3.4"),
];

/// A package that checks versions of its requirements at import and raises an error on a mismatch.
struct VersionCheck {
    package: &'static str,
    /// The first release with the check, if releases without it are still in use.
    since: Option<&'static str>,
    /// Requirements checked against the whole range of METADATA.
    range: &'static [&'static str],
    /// Requirements checked only against the lower bound of METADATA.
    lowest: &'static [&'static str],
}

/// Read on 2026-11-23 in the wheels of PyPI that the comments name. Checks against other bounds than METADATA's are left out
/// (matplotlib: pyparsing), as are checks that a package is present (older transformers: filelock, requests).
const COMPARED: [VersionCheck; 6] = [
    // 5.23.0, dependency_versions_check.py and dependency_versions_table.py: ImportError. It ignores an old accelerate.
    VersionCheck {
        package: "transformers",
        since: None,
        range: &[
            "huggingface-hub",
            "numpy",
            "packaging",
            "pyyaml",
            "regex",
            "safetensors",
            "tokenizers",
            "tqdm",
        ],
        lowest: &[],
    },
    // 0.10.2, jax/_src/lib/__init__.py: RuntimeError; from jax/version.py's lowest jaxlib up to jax's own version.
    VersionCheck { package: "jax", since: None, range: &["jaxlib"], lowest: &[] },
    // 2.14.3, pydantic/version.py, called by __init__.py: SystemError. 2.11.10 has no such call, 2.12.0 has it.
    VersionCheck {
        package: "pydantic",
        since: Some("2.12.0"),
        range: &["pydantic-core"],
        lowest: &[],
    },
    // 3.1.1, pandas/compat/numpy/__init__.py: ImportError.
    VersionCheck { package: "pandas", since: None, range: &[], lowest: &["numpy"] },
    // 0.68.1, numba/__init__.py, _ensure_critical_deps and _ensure_llvm: ImportError.
    VersionCheck { package: "numba", since: None, range: &["numpy"], lowest: &["llvmlite"] },
    // 3.11.2, matplotlib/__init__.py, _check_versions: ImportError.
    VersionCheck {
        package: "matplotlib",
        since: None,
        range: &[],
        lowest: &["cycler", "kiwisolver", "numpy", "python-dateutil"],
    },
];

/// Packages whose versions relative to each other are checked by `torch-pairs`.
const OWN_RULES: [&str; 4] = ["torch", "torchvision", "torchaudio", "triton"];

/// Whether `torch-pairs` checks this requirement: torchvision's torch or torch's triton, but not a pin of vllm or xformers.
fn has_own_rule(dist: &Dist, wanted: &Requirement) -> bool {
    let own = |name: &str| OWN_RULES.contains(&name);
    own(&Dist::normalise(&dist.name)) && own(&wanted.name)
}

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().filter_map(|env| judge(context.machine, env)).collect()
}

type Conflict<'a> = (&'a Dist, Requirement, &'a Dist);

/// Whether the requiring package raises an error at import because of this conflict.
fn is_compared((dist, wanted, installed): &Conflict<'_>) -> bool {
    let name = Dist::normalise(&dist.name);
    let named = |names: &[&str]| names.contains(&wanted.name.as_str());
    COMPARED.iter().filter(|it| it.package == name).any(|it| {
        it.since.is_none_or(|since| !is_before(&dist.version, since))
            && (named(it.range) || (named(it.lowest) && is_too_old(dist, wanted, installed)))
    })
}

/// Whether a version is older than another; false if either cannot be parsed.
fn is_before(version: &str, other: &str) -> bool {
    let versions = Version::parse(version).zip(Version::parse(other));
    versions.is_some_and(|(version, other)| version.compare(&other) == Ordering::Less)
}

/// Whether it is older than every requirement line allows: pandas has one line per Python and checks the lowest bound.
fn is_too_old(dist: &Dist, wanted: &Requirement, installed: &Dist) -> bool {
    let lines = dist.requires.iter().filter_map(|line| requirement::parse(line));
    lines.filter(|line| line.name == wanted.name).all(|line| {
        let constraint = line.constraint();
        let mut lowest = constraint.split(',').filter_map(|clause| clause.strip_prefix(">="));
        lowest.any(|version| is_before(&installed.version, version))
    })
}

/// Conflicts that stop an import come first. Requirements of a package that is itself in conflict are left out, because its
/// replacement has other requirements.
fn conflicts<'a>(machine: &Machine, env: &'a PyEnv) -> Vec<Conflict<'a>> {
    let mut all = every_conflict(machine, env);
    let exchanged = |dist: &Dist, all: &[Conflict<'_>]| {
        all.iter().any(|(other, _, installed)| {
            installed.path == dist.path
                && other.path != dist.path
                && !OWN_RULES.contains(&installed.name.as_str())
        })
    };
    let last: Vec<bool> = all.iter().map(|(dist, ..)| !exchanged(dist, &all)).collect();
    if last.contains(&true) {
        let mut last = last.into_iter();
        all.retain(|_| last.next() == Some(true));
    }
    all.compact_sort_by_key(|conflict| !is_compared(conflict));
    all
}

fn every_conflict<'a>(machine: &Machine, env: &'a PyEnv) -> Vec<Conflict<'a>> {
    let all =
        applicable_requirements(machine, env).into_iter().map(|want| (want.dist, want.wanted));
    all.filter(|(dist, wanted)| !has_own_rule(dist, wanted))
        .filter_map(|(dist, wanted)| {
            let installed = live_dist(env, &wanted.name)?;
            let version = Version::parse(&installed.version).filter(Version::is_final)?;
            (wanted.allows(&version) == Some(false)).then_some((dist, wanted, installed))
        })
        .collect()
}

/// The installed version as a requirement, without its local version label.
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
    let compared = is_compared(&conflicts[0]);
    let severity = if compared { Severity::Error } else { Severity::Warning };
    let mut draft = RULE.finding(
        severity,
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
    // At most twelve conflicts, so that the finding fits on one screen.
    for (dist, wanted, installed) in conflicts.iter().take(12) {
        draft = draft
            .evidence(
                format!("{} {}: Requires-Dist: {}", dist.name, dist.version, wanted.line),
                format!("{}/METADATA", dist.path),
            )
            .evidence(format!("{} {}", installed.name, installed.version), installed.path.clone());
        // Compiled packages depend on the installed torch, so the package that requires another torch is replaced.
        let wants = match OWN_RULES.contains(&wanted.name.as_str()) {
            true => vec![dist.name.clone(), kept(installed)],
            false => vec![format!("{}{}", wanted.name, wanted.constraint())],
        };
        specs.extend(wants.into_iter().filter(|spec| !specs.contains(spec)).collect::<Vec<_>>());
        if ON_PYTORCH_INDEX.contains(&(wanted.name.as_str(), installed.version.as_str())) {
            from_index.push(format!("{} {}", wanted.name, installed.version));
        }
    }
    let cause = if from_index.is_empty() && compared {
        format!(
            "The last install changed a version that another package still needs, and {} compares it when it is imported.",
            first.name
        )
    } else if from_index.is_empty() {
        "The last install changed a version that another package still needs.".to_owned()
    } else {
        from_index.dedup();
        format!(
            "{} is what PyTorch's index (download.pytorch.org/whl) has: it was installed from there instead of from PyPI.",
            from_index.join(", ")
        )
    };
    let installer = Installer::of(env);
    Some(draft.cause(cause).fix([installer.install(&specs, None), installer.check()]).finish())
}

#[cfg(test)]
mod tests {
    use crate::requirement;
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

    /// A package, its requirement, and the installed version of the required package.
    fn two(what: &'static str, [name, version]: [&str; 2], line: &str, installed: &str) -> Case {
        let wanted = requirement::parse(line).expect("a requirement").name;
        let env = env("/v").dist(name, version).requires(name, line).dist(&wanted, installed);
        Case::new(what, machines::h200(), vec![env.build()])
    }

    fn pandas(what: &'static str, python: &str, numpy: &str) -> Case {
        let env = env("/v").python(python).dist("pandas", "3.1.1").dist("numpy", numpy);
        let env = env
            .requires("pandas", "numpy>=2.0.2; python_version < \"3.14\"")
            .requires("pandas", "numpy>=2.3.3; python_version >= \"3.14\"");
        Case::new(what, machines::h200(), vec![env.build()])
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
            Case::new("transformers compares versions when it is imported", machines::h200(), vec![
                env("/v")
                    .dist("transformers", "5.20.0")
                    .requires("transformers", "tokenizers<0.24.0,>=0.23.1")
                    .dist("tokenizers", "0.15.2")
                    .requires("tokenizers", "huggingface-hub>=0.16.4,<1.0")
                    .dist("huggingface-hub", "2.4.0")
                    .build(),
            ])
            .finds(
                Error,
                Certain,
                &[
                    "transformers 5.20.0 requires tokenizers<0.24.0,>=0.23.1, but 0.15.2 is installed in /v",
                    "transformers compares it when it is imported",
                    "install 'tokenizers<0.24.0,>=0.23.1'",
                ],
            )
            .without(&["huggingface-hub"]),
            two("pydantic refuses another pydantic-core", ["pydantic", "2.12.0"], "pydantic-core==2.41.1", "2.41.5")
                .finds(Error, Certain, &["pydantic compares it when it is imported"]),
            two("an older pydantic does not", ["pydantic", "2.11.10"], "pydantic-core==2.33.2", "2.41.5")
                .finds(Warning, Certain, &["requires pydantic-core==2.33.2"])
                .without(&["compares it"]),
            two("numba and an llvmlite that is too old", ["numba", "0.68.1"], "llvmlite<0.51,>=0.50.0dev0", "0.44.0")
                .finds(Error, Certain, &["numba compares it when it is imported"]),
            two("numba does not compare with a newer llvmlite", ["numba", "0.68.1"], "llvmlite<0.51,>=0.50.0dev0", "0.51.0")
                .finds(Warning, Certain, &["requires llvmlite<0.51,>=0.50.0dev0"])
                .without(&["compares it"]),
            two("numba and a numpy that is too new", ["numba", "0.68.1"], "numpy<2.6,>=1.22", "2.6.0")
                .finds(Error, Certain, &["numba compares it when it is imported"]),
            two("matplotlib's METADATA wants a newer pyparsing than its import", ["matplotlib", "3.11.2"], "pyparsing>=3", "2.4.7")
                .finds(Warning, Certain, &["requires pyparsing>=3"])
                .without(&["compares it"]),
            pandas("pandas and a numpy too old for every Python", "3.12.3", "1.26.4")
                .finds(Error, Certain, &["pandas compares it when it is imported"]),
            pandas("pandas and a numpy too old for this Python", "3.14.0", "2.3.2")
                .finds(Warning, Certain, &["requires numpy>=2.3.3"])
                .without(&["compares it"]),
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
            Case::new("a version that cannot be parsed", machines::h200(), with("unknown", "requests>=2.32.2")),
            Case::new("torch is kept, and the package that requires another one changes", machines::h200(), vec![
                env("/v").dist("torch", "2.5.1").dist("vllm", "0.33").requires("vllm", "torch==2.14.0").build(),
            ])
            .finds(
                Warning,
                Certain,
                &["vllm 0.33 requires torch==2.14.0, but 2.5.1 is installed", "install vllm torch==2.5.1"],
            ),
            Case::new("torchvision is left to torch-pairs", machines::h200(), vec![
                env("/v").dist("torch", "2.5.1").dist("torchvision", "0.19").requires("torchvision", "torch==2.4.0").build(),
            ]),
        ]
    }
}
