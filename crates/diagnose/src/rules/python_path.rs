use super::other_python::{dotted, own_release};
use super::{Context, Need, Rule};
use crate::dist_requirements::{DistRequirement, applicable_requirements};
use crate::torch_build::live_dist;
use facts::CompactSort;
use facts::{Confidence, Dist, Finding, Machine, PathFolder, PathModule, PyEnv, Severity};
use knowledge::Version;

pub(super) const RULE: Rule = Rule {
    id: "python-path",
    title: "PYTHONPATH puts other packages in front of the environment's",
    about: "\
PYTHONPATH is searched before the packages of every environment. If it names the packages of another Python release (a
system's, a module system's, ROS's), Python imports those with the same names as the environment's, and their compiled
modules are for the other release. A folder that `pip install --target` filled for the same Python also hides the
environment's packages, so packages compiled or pinned for the hidden release run with another one.

It shows as one of
  ImportError: Error importing numpy: you should not try to import numpy from its source directory
  ModuleNotFoundError: No module named 'numpy._core._multiarray_umath'
  ValueError: numpy.dtype size changed, may indicate binary incompatibility.
although the environment has a complete and matching numpy.

Detected in the names of compiled modules and dist-info folders in the folders on PYTHONPATH.

Unset PYTHONPATH, in the shell and in its start-up files.",
    links: &["https://docs.python.org/3/using/cmdline.html#envvar-PYTHONPATH"],
    remedy: |_| commands(),
    needs: &[Need::Environment],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn commands() -> Vec<String> {
    vec![
        "unset PYTHONPATH".into(),
        "grep -n PYTHONPATH ~/.bashrc ~/.profile /etc/environment".into(),
    ]
}

fn check(context: &Context) -> Vec<Finding> {
    let own = |env| judge(env).or_else(|| other_version(context.machine, env));
    context.envs.iter().filter_map(own).collect()
}

/// A package for this Python that hides another release of it.
fn other_version(machine: &Machine, env: &PyEnv) -> Option<Finding> {
    let all = env.in_front.iter().flat_map(|front| front.modules.iter().map(move |it| (front, it)));
    let mut hiding = all.filter(|(_, module)| module.hides).peekable();
    hiding.peek()?;
    let wants = applicable_requirements(machine, env);
    let unmet = |module: &PathModule| -> Vec<&DistRequirement<'_>> {
        let version = module.version.as_deref().and_then(Version::parse);
        let refuses = |want: &&DistRequirement<'_>| {
            Dist::same_name(&want.wanted.name, &module.name)
                && version.as_ref().and_then(|version| want.wanted.allows(version)) == Some(false)
        };
        wants.iter().filter(refuses).collect()
    };
    let mut hidden: Vec<(&PathFolder, &PathModule, &Dist, Vec<&DistRequirement<'_>>)> = hiding
        .filter_map(|(front, module)| {
            let dist = live_dist(env, &module.name)?;
            let other = module.version.as_ref().is_some_and(|version| *version != dist.version);
            other.then(|| (front, module, dist, unmet(module)))
        })
        .collect();
    // Modules that violate a requirement of the environment come first.
    hidden.compact_sort_by_key(|(.., unmet)| unmet.is_empty());
    let (front, module, dist, refused) = hidden.first()?;
    let version = module.version.as_deref().unwrap_or_default();
    let severity = if refused.is_empty() { Severity::Warning } else { Severity::Error };
    let title = format!(
        "PYTHONPATH hides {} {} of {}: {} {version} is found first",
        dist.name, dist.version, env.root, module.name
    );
    let mut draft = RULE
        .finding(severity, Confidence::Likely, title)
        .evidence(format!("PYTHONPATH names {}", front.folder), "PYTHONPATH");
    for (front, module, dist, _) in hidden.iter().take(4) {
        let version = module.version.as_deref().unwrap_or_default();
        let what = format!("{} {version} is found before {}", module.name, dist.version);
        draft = draft.evidence(what, format!("{}/{}", front.folder, module.name));
    }
    for want in refused.iter().take(4) {
        let what =
            format!("{} {} requires {}", want.dist.name, want.dist.version, want.wanted.line);
        draft = draft.evidence(what, format!("{}/METADATA", want.dist.path));
    }
    let cause = "Python searches the folders of PYTHONPATH before the environment's own, so packages that were installed \
                 together are not imported together.";
    Some(draft.cause(cause).fix(commands()).finish())
}

fn judge(env: &PyEnv) -> Option<Finding> {
    let own = own_release(env)?;
    let all = env.in_front.iter().flat_map(|front| front.modules.iter().map(move |it| (front, it)));
    let mut strays: Vec<(&PathFolder, &PathModule)> = all
        .filter(|(_, module)| !module.releases.is_empty() && !module.releases.contains(&own))
        .collect();
    // A module that hides a package of the environment breaks it; other modules are harmless until they are imported.
    strays.compact_sort_by_key(|(_, module)| !module.hides);
    let (front, first) = strays.first()?;
    let hiding = strays.iter().filter(|(_, module)| module.hides).count();
    let severity = if hiding > 0 { Severity::Error } else { Severity::Warning };
    let release = first.releases.iter().map(|it| dotted(it)).collect::<Vec<_>>().join(", ");
    let title = match hiding {
        0 => format!(
            "PYTHONPATH brings {} for Python {release} into {}, which is {}",
            first.name,
            env.root,
            dotted(&own)
        ),
        _ => format!(
            "PYTHONPATH hides {} of {}: a copy for Python {release} is found first",
            first.name, env.root
        ),
    };
    let mut draft = RULE
        .finding(severity, Confidence::Certain, title)
        .evidence(format!("PYTHONPATH names {}", front.folder), "PYTHONPATH");
    for (_, module) in strays.iter().take(4) {
        draft = draft.evidence(
            format!("{} is compiled for Python {}", module.name, dotted(&module.releases[0])),
            module.example.clone(),
        );
    }
    if strays.len() > 4 {
        draft = draft.evidence(format!("{} packages in all", strays.len()), front.folder.clone());
    }
    let cause = "Python searches the folders of PYTHONPATH before the environment's own, and does not check whether their \
                 packages are for its release.";
    Some(draft.cause(cause).fix(commands()).finish())
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, PathFolder, PathModule, PyEnv, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let front = |hides: bool, releases: &[&str]| -> Vec<PyEnv> {
            let module = PathModule {
                name: "numpy".into(),
                hides,
                releases: releases.iter().map(|it| (*it).to_owned()).collect(),
                example:
                    "/usr/lib/python3/dist-packages/numpy/_core/x.cpython-310-x86_64-linux-gnu.so"
                        .into(),
                version: None,
            };
            let folder = PathFolder {
                folder: "/usr/lib/python3/dist-packages".into(),
                modules: vec![module],
            };
            vec![PyEnv { in_front: vec![folder], ..env("/v").dist("numpy", "2.3.5").build() }]
        };
        // `pip install --target` for the same Python; pandas 2.1 is compiled against NumPy 1 and requires it.
        let same = |version: &str| {
            let mut envs = front(true, &["312"]);
            envs[0].in_front[0].modules[0].version = Some(version.into());
            let pandas = env("/v").dist("numpy", "1.26.4").dist("pandas", "2.1.4");
            let pandas = pandas.requires("pandas", "numpy<2,>=1.26.0; python_version >= \"3.12\"");
            vec![PyEnv { in_front: envs.remove(0).in_front, ..pandas.build() }]
        };
        vec![
            Case::new("NumPy 2 before the 1 that pandas requires", machines::a10(), same("2.2.6"))
                .finds(
                    Error,
                    Likely,
                    &[
                        "PYTHONPATH hides numpy 1.26.4 of /v: numpy 2.2.6 is found first",
                        "numpy 2.2.6 is found before 1.26.4 [/usr/lib/python3/dist-packages/numpy]",
                        "pandas 2.1.4 requires numpy<2,>=1.26.0",
                        "unset PYTHONPATH",
                    ],
                ),
            Case::new(
                "another release that every requirement allows",
                machines::a10(),
                same("1.26.5"),
            )
            .finds(
                Warning,
                Likely,
                &["PYTHONPATH hides numpy 1.26.4 of /v: numpy 1.26.5 is found first"],
            ),
            Case::new("the same release twice", machines::a10(), same("1.26.4")),
            Case::new("another Python's numpy", machines::a10(), front(true, &["310"])).finds(
                Error,
                Certain,
                &[
                    "PYTHONPATH hides numpy of /v: a copy for Python 3.10 is found first",
                    "PYTHONPATH names /usr/lib/python3/dist-packages [PYTHONPATH]",
                    "x.cpython-310-x86_64-linux-gnu.so]",
                    "unset PYTHONPATH",
                ],
            ),
            Case::new("ROS on PYTHONPATH", machines::a10(), front(false, &["310"])).finds(
                Warning,
                Certain,
                &["PYTHONPATH brings numpy for Python 3.10 into /v, which is 3.12"],
            ),
            Case::new("of the same release", machines::a10(), front(true, &["310", "312"])),
            Case::new("the stable ABI", machines::a10(), front(true, &[])),
        ]
    }
}
