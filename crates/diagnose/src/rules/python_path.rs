use super::other_python::{dotted, own_release};
use super::{Context, Need, Rule};
use facts::{Confidence, Finding, PathFolder, PathModule, PyEnv, Severity};

pub(super) const RULE: Rule = Rule {
    id: "python-path",
    title: "PYTHONPATH puts packages of another Python in front",
    about: "\
PYTHONPATH is searched before the packages of every environment. Where it names the packages of another release of
Python (a system's, a module system's, that of ROS), Python takes those that have the same names as the environment's,
and their compiled modules are for the other release.

It shows as one of
  ImportError: Error importing numpy: you should not try to import numpy from its source directory
  ModuleNotFoundError: No module named 'numpy._core._multiarray_umath'
although the environment has a numpy that is whole.

Seen in the names of the compiled modules in the folders that PYTHONPATH names.

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
    context.envs.iter().filter_map(judge).collect()
}

fn judge(env: &PyEnv) -> Option<Finding> {
    let own = own_release(env)?;
    let all = env.in_front.iter().flat_map(|front| front.modules.iter().map(move |it| (front, it)));
    let mut strays: Vec<(&PathFolder, &PathModule)> = all
        .filter(|(_, module)| !module.releases.is_empty() && !module.releases.contains(&own))
        .collect();
    // What hides a package of the environment breaks it; what is only there breaks nothing by itself.
    strays.sort_by_key(|(_, module)| !module.hides);
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
            "PYTHONPATH hides {} of {} behind one for Python {release}",
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
    let cause = "Python searches the folders of PYTHONPATH before the environment's own, and does not look whether what lies \
                 there is for its release.";
    Some(draft.cause(cause).fix(commands()).done())
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
            };
            let folder = PathFolder {
                folder: "/usr/lib/python3/dist-packages".into(),
                modules: vec![module],
            };
            vec![PyEnv { in_front: vec![folder], ..env("/v").dist("numpy", "2.3.5").build() }]
        };
        vec![
            Case::new("another Python's numpy", machines::a10(), front(true, &["310"])).finds(
                Error,
                Certain,
                &[
                    "PYTHONPATH hides numpy of /v behind one for Python 3.10",
                    "PYTHONPATH names /usr/lib/python3/dist-packages [PYTHONPATH]",
                    "x.cpython-310-x86_64-linux-gnu.so]",
                    "unset PYTHONPATH",
                ],
            ),
            Case::new("ROS beside an environment", machines::a10(), front(false, &["310"])).finds(
                Warning,
                Certain,
                &["PYTHONPATH brings numpy for Python 3.10 into /v, which is 3.12"],
            ),
            Case::new("of the same release", machines::a10(), front(true, &["310", "312"])),
            Case::new("the stable ABI", machines::a10(), front(true, &[])),
        ]
    }
}
