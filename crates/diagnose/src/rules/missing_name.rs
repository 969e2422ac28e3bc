use super::{Context, Need, Rule};
use crate::dist_requirements::applicable_requirements;
use crate::remedy::Installer;
use crate::torch_build::live_dist;
use facts::{
    Confidence, Dist, Finding, Machine, MissingKind, MissingName, PyEnv, RemedyStep, Severity,
};
use knowledge::Version;

pub(super) const RULE: Rule = Rule {
    id: "missing-name",
    title: "an import uses a name that the installed package does not have",
    about: "\
A package's import uses a name of another installed package whose installed version does not have it: a later version
moved or removed the name, or an earlier one does not have it yet. The rule also finds two packages of one project that
require the same version.

It shows as
  ImportError: cannot import name 'GreedySearchDecoderOnlyOutput' from 'transformers.generation'
  ModuleNotFoundError: No module named 'transformers.generation_utils'
  AttributeError: module 'torch' has no attribute 'float8_e8m0fnu'
  TypeError: register_fake() got an unexpected keyword argument 'allow_override'
  RuntimeError: flashinfer-cubin version (0.6.13) does not match flashinfer version (0.6.14)

Detected by reading the Python files that an import runs, without importing them. A statement counts only if it
certainly runs and its error is not caught; a module whose names cannot be listed counts as having every name.

Install compatible versions of both packages.",
    links: &["https://docs.python.org/3/reference/import.html"],
    remedy: |seen| vec![format!("{} -m pip check", seen.installer().python())],
    needs: &[Need::Environment],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    let of = |env: &PyEnv| -> Vec<Finding> {
        env.missing_names.iter().map(|missing| finding(context.machine, env, missing)).collect()
    };
    context.envs.iter().flat_map(of).collect()
}

/// A distribution with its version, as a message names it.
fn shown(env: &PyEnv, name: Option<&String>, otherwise: &str) -> String {
    match name.and_then(|name| live_dist(env, name)) {
        Some(dist) => format!("{} {}", dist.name, dist.version),
        None => otherwise.to_owned(),
    }
}

fn finding(machine: &Machine, env: &PyEnv, missing: &MissingName) -> Finding {
    let MissingName { module, name, .. } = missing;
    let importer = shown(env, missing.dist.as_ref(), &missing.at);
    let provider = shown(env, missing.provider.as_ref(), module);
    let same = missing.dist.is_some() && missing.dist == missing.provider;
    let title = match missing.kind {
        MissingKind::Version => {
            format!("{importer} in {} refuses {provider}: both have to be of one version", env.root)
        }
        MissingKind::Keyword => format!(
            "{importer} in {} calls {module} with the keyword {name}, which {provider} does not have",
            env.root
        ),
        _ if same => {
            format!(
                "{importer} in {} imports {module}.{name}, which its own files do not have",
                env.root
            )
        }
        _ => format!(
            "{importer} in {} imports {module}.{name}, which {provider} does not have",
            env.root
        ),
    };
    let what = match missing.kind {
        MissingKind::Name => format!("from {module} import {name}"),
        MissingKind::Submodule => format!("import {module}.{name}"),
        MissingKind::Attribute => format!("{module}.{name} is evaluated"),
        MissingKind::Version => format!("raises unless {module} has the version of {name}"),
        MissingKind::Keyword => format!("{module}({name}=...) is called"),
    };
    let mut draft = RULE
        .finding(Severity::Error, Confidence::Certain, title)
        .evidence(what, missing.at.clone());
    if let Some(dist) = missing.provider.as_ref().and_then(|name| live_dist(env, name)) {
        let lacks = match missing.kind {
            MissingKind::Version => format!("{} {}", dist.name, dist.version),
            MissingKind::Keyword => {
                format!("{module} of {} {} has no parameter {name}", dist.name, dist.version)
            }
            _ => format!("{} {} has no {name} in {module}", dist.name, dist.version),
        };
        draft = draft.evidence(lacks, dist.path.clone());
    }
    let shown: Vec<String> =
        missing.imports.iter().take(6).map(|name| format!("import {name}")).collect();
    let more = missing.imports.len().saturating_sub(shown.len());
    let and = if more > 0 { format!(" and {more} more") } else { String::new() };
    let from = missing.via.last().unwrap_or(&missing.at);
    draft = draft.evidence(format!("{}{and} fails by it", shown.join(", ")), from.clone());
    let cause = match missing.kind {
        MissingKind::Version => {
            "The package compares both versions when it is imported and raises."
        }
        _ if same => "Files of two releases are mixed, or some are missing.",
        _ => {
            "The two packages do not fit together: one was installed or upgraded without the other."
        }
    };
    draft.cause(cause).fix(remedy(machine, env, missing, same)).finish()
}

fn remedy(machine: &Machine, env: &PyEnv, missing: &MissingName, same: bool) -> Vec<RemedyStep> {
    let installer = Installer::of(env);
    let live = |name: Option<&String>| name.and_then(|name| live_dist(env, name));
    let (importer, provider) = (live(missing.dist.as_ref()), live(missing.provider.as_ref()));
    let Some(importer) = importer else { return Vec::new() };
    let Some(provider) = provider.filter(|_| !same) else {
        return vec![installer.reinstall(&[&importer.name])];
    };
    if missing.kind == MissingKind::Version {
        return vec![
            installer.install(&[format!("{}=={}", provider.name, importer.version)], None),
            RemedyStep::Alternative { text: "or, if the index has no such release:".to_owned() },
            installer.uninstall(&[&provider.name]),
        ];
    }
    // An unmet requirement in METADATA names the version that fits.
    match unmet(machine, env, importer, provider)
        .or_else(|| unmet(machine, env, provider, importer))
    {
        Some(spec) => vec![installer.install(&[spec], None)],
        None => {
            let both = [importer.name.clone(), provider.name.clone()];
            vec![installer.install(&both, None).upgraded()]
        }
    }
}

/// The requirement of one package on the other, if the installed version does not meet it.
fn unmet(machine: &Machine, env: &PyEnv, dist: &Dist, other: &Dist) -> Option<String> {
    let name = Dist::normalise(&other.name);
    let version = Version::parse(&other.version)?;
    applicable_requirements(machine, env)
        .into_iter()
        .filter(|want| want.dist.path == dist.path && want.wanted.name == name)
        .find(|want| want.wanted.allows(&version) == Some(false))
        .map(|want| format!("{}{}", want.wanted.name, want.wanted.constraint()))
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, EnvBuilder, env, machines};
    use facts::{Confidence::*, MissingKind, MissingName, PyEnv, Severity::*};

    fn missing(env: EnvBuilder, of: (&str, &str), what: (&str, &str), kind: MissingKind) -> PyEnv {
        let mut env = env.build();
        env.missing_names.push(MissingName {
            dist: Some(of.0.into()),
            at: "/v/lib/python3.12/site-packages/a/b.py:7".into(),
            module: what.0.into(),
            name: what.1.into(),
            kind,
            provider: Some(of.1.into()),
            imports: vec!["a".into()],
            via: vec!["/v/lib/python3.12/site-packages/a/__init__.py:3".into()],
        });
        env
    }

    pub(super) fn cases() -> Vec<Case> {
        let pair = || env("/v").uv().dist("mamba-ssm", "2.2.2").dist("transformers", "5.24.0");
        let hub =
            || env("/v").uv().dist("transformers", "5.24.0").dist("huggingface-hub", "0.23.5");
        let name = ("huggingface_hub", "is_offline_mode");
        vec![
            Case::new("an older model library", machines::a10(), vec![missing(
                pair(),
                ("mamba-ssm", "transformers"),
                ("transformers.generation", "GreedySearchDecoderOnlyOutput"),
                MissingKind::Name,
            )])
            .finds(
                Error,
                Certain,
                &[
                    "mamba-ssm 2.2.2 in /v imports transformers.generation.GreedySearchDecoderOnlyOutput, which transformers 5.24.0 does not have",
                    "from transformers.generation import GreedySearchDecoderOnlyOutput [/v/lib/python3.12/site-packages/a/b.py:7]",
                    "import a fails by it [/v/lib/python3.12/site-packages/a/__init__.py:3]",
                    "uv pip install --python /v/bin/python --upgrade mamba-ssm transformers",
                ],
            ),
            Case::new("METADATA names the version that fits", machines::a10(), vec![missing(
                hub().requires("transformers", "huggingface-hub<3.0,>=1.5.0"),
                ("transformers", "huggingface-hub"),
                name,
                MissingKind::Name,
            )])
            .finds(Error, Certain, &["install --python /v/bin/python 'huggingface-hub<3.0,>=1.5.0'"]),
            Case::new("siblings of two versions", machines::a10(), vec![missing(
                env("/v").uv().dist("flashinfer-python", "0.6.14").dist("flashinfer-cubin", "0.6.13"),
                ("flashinfer-python", "flashinfer-cubin"),
                ("flashinfer_cubin", "flashinfer"),
                MissingKind::Version,
            )])
            .finds(
                Error,
                Certain,
                &[
                    "flashinfer-python 0.6.14 in /v refuses flashinfer-cubin 0.6.13: both have to be of one version",
                    "flashinfer-cubin==0.6.14",
                ],
            ),
            Case::new("files of two releases", machines::a10(), vec![missing(
                hub(),
                ("transformers", "transformers"),
                ("transformers.utils", "ModelOutput"),
                MissingKind::Submodule,
            )])
            .finds(Error, Certain, &["which its own files do not have", "transformers"]),
            Case::new("no missing names", machines::a10(), vec![hub().build()]),
        ]
    }
}
