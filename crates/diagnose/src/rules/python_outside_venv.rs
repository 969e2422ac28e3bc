use super::{Context, Need, Rule, Text};
use crate::remedy::{python_path, quote};
use facts::{Confidence, EnvKind, EnvManager, Finding, PyEnv, Severity};
use knowledge::minor_of;

pub(super) const RULE: Rule = Rule {
    id: "python-outside-venv",
    title: "the Python that runs is not the environment's",
    about: "\
An environment is in use only if its own interpreter runs. If `python` on PATH is another interpreter, `pip install` may
install into one environment while the program reads from another. Causes are a shell profile that changes PATH after
the activation, an environment that was moved or copied (its scripts contain the old path), sudo, or an environment that
was never activated.

It shows as
  ModuleNotFoundError: No module named 'torch'
right after installing torch, or as an old version that remains after an upgrade. `which python` and `which pip` show
it.

Detected by comparing the interpreter on PATH with the environment in VIRTUAL_ENV or CONDA_PREFIX, and an environment's
interpreter with its folder.

Activate the environment again, or name its interpreter: /path/.venv/bin/python -m pip ...",
    links: &["https://docs.python.org/3/library/venv.html"],
    texts: &[
        Text::new("This environment is externally managed", "error: externally-managed-environment\n\n× This environment is externally managed"),
        Text::new(".venv/bin/*: bad interpreter: No such file or directory", "bash: /home/user/.venv/bin/pip: /home/user/old/.venv/bin/python: bad interpreter: No such file or directory"),
        Text::new("/bin/pip*: bad interpreter: No such file or directory", "-bash: /home/user/env/bin/pip: /home/user/old/env/bin/python3: bad interpreter: No such file or directory"),
        Text::new("It is a distutils installed project and thus we cannot accurately determine", "ERROR: Cannot uninstall 'PyYAML'. It is a distutils installed project and thus we cannot accurately determine which files belong to it which would lead to only a partial uninstall."),
    ],
    remedy: |seen| match seen.env() {
        Some(env) => vec![format!(". {}", quote(&format!("{}/bin/activate", env.root)))],
        None => vec!["python3 -m venv .venv".into(), ". .venv/bin/activate".into()],
    },
    needs: &[Need::Environment],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    let own = context.envs.iter().filter_map(own_interpreter);
    let other = context.envs.iter().filter_map(other_release);
    own.chain(other).chain(on_path(context.envs)).collect()
}

/// A virtual environment whose interpreter is missing or outside its folder.
fn own_interpreter(env: &PyEnv) -> Option<Finding> {
    if env.kind != EnvKind::Venv {
        return None;
    }
    let root = env.root.trim_end_matches('/');
    let missing = is_missing(env);
    let seen = match &env.interpreter.executable {
        Some(path) if missing => format!("{path} leads to no file"),
        Some(path) if is_inside(path, root) => return None,
        Some(path) => path.clone(),
        None => "no bin/python".to_owned(),
    };
    let finding = RULE
        .finding(
            Severity::Error,
            if missing { Confidence::Likely } else { Confidence::Certain },
            match missing {
                true => format!("the environment {root} has no interpreter: {seen}"),
                false => format!("the environment {root} runs {seen}, which is outside it"),
            },
        )
        .evidence(seen, format!("{root}/bin"))
        .cause(
            "The environment was moved or copied, or the Python it was made from was removed; packages installed into \
             it are not the ones that run.",
        )
        .fix(remake(env))
        .finish();
    Some(finding)
}

/// A virtual environment whose interpreter is now another Python release, which uses another packages folder.
pub(super) fn other_release(env: &PyEnv) -> Option<Finding> {
    let resolved = env.interpreter.resolved.as_deref().filter(|_| env.kind == EnvKind::Venv)?;
    // `/usr/bin/python3.13` contains its release; `python3` and `pypy3` do not.
    let release = resolved.rsplit('/').next()?.strip_prefix("python")?;
    let (major, minor) =
        minor_of(release.trim_end_matches('t')).filter(|_| release.contains('.'))?;
    let folder = |site: &String| {
        let lib = site.strip_prefix(env.root.trim_end_matches('/'))?.split('/').nth(2)?;
        minor_of(lib.strip_prefix("python")?.trim_end_matches('t'))
    };
    let (site, was) = env.site_packages.iter().find_map(|site| Some((site, folder(site)?)))?;
    if was == (major, minor) {
        return None;
    }
    let (now, was) = (format!("{major}.{minor}"), format!("{}.{}", was.0, was.1));
    let title = format!(
        "the interpreter of {} is Python {now}, and its packages are Python {was}'s",
        env.root
    );
    let python = env.interpreter.executable.clone().unwrap_or_default();
    let finding = RULE
        .finding(Severity::Error, Confidence::Certain, title)
        .evidence(format!("{python} leads to {resolved}"), format!("{}/bin", env.root))
        .evidence(format!("its packages are for Python {was}"), site.clone())
        .cause(
            "The Python that the environment was made from was upgraded in place. The new release looks for packages in a \
             folder with its own number, which is empty; compiled modules of the old one would not load either.",
        )
        .fix(remake(env))
        .finish();
    Some(finding)
}

fn remake(env: &PyEnv) -> Vec<String> {
    let root = quote(&env.root);
    let version = env.interpreter.version.as_ref().map(|fact| fact.value.as_str());
    let uv = env.manager.as_ref().is_some_and(|manager| manager.value == EnvManager::Uv);
    let listed =
        "# the packages to reinstall afterwards are the *.dist-info folders in:".to_owned();
    let folders = env.site_packages.iter().map(|folder| format!("ls {}", quote(folder)));
    let make = match (uv, version) {
        (true, Some(version)) => format!("uv venv --clear --python {version} {root}"),
        (true, None) => format!("uv venv --clear {root}"),
        (false, _) => format!("python3 -m venv --clear {root}"),
    };
    let mut lines: Vec<String> = std::iter::once(listed).chain(folders).chain([make]).collect();
    if matches!(env.found_by.as_str(), "VIRTUAL_ENV" | "CONDA_PREFIX") {
        lines.push("# or, if you do not need the environment:".to_owned());
        lines.push(format!("unset {}", env.found_by));
    }
    lines
}

/// Whether an environment's interpreter is missing: no file, or a link to a Python that was removed.
fn is_missing(env: &PyEnv) -> bool {
    env.interpreter.executable.is_none() || env.interpreter.resolved.is_none()
}

/// Compares the environment that the shell names with the Python on PATH.
fn on_path(envs: &[PyEnv]) -> Option<Finding> {
    let on_path = envs.iter().find(|env| env.found_by == "python on PATH")?;
    let wanted = ["VIRTUAL_ENV", "CONDA_PREFIX", "./.venv"]
        .into_iter()
        .find_map(|how| envs.iter().find(|env| env.found_by == how))?;
    let python = python_path(on_path);
    let broken = wanted.kind == EnvKind::Venv && is_missing(wanted);
    // A broken environment has its own finding, and activating it would not help.
    if broken || is_inside(&python, wanted.root.trim_end_matches('/')) {
        return None;
    }
    let active = wanted.found_by != "./.venv";
    let uv = wanted.manager.as_ref().is_some_and(|manager| manager.value == EnvManager::Uv);
    let (severity, title, cause) = match (active, uv) {
        (true, _) => (
            Severity::Error,
            format!("{} names {}, but `python` is {python}", wanted.found_by, wanted.root),
            "The environment is active in the shell, but another folder is first on PATH; pip may install into one \
             environment while programs read from another.",
        ),
        (false, false) => (
            Severity::Warning,
            format!("{} is here but not active: `python` is {python}", wanted.root),
            "The environment was never activated in this shell, so `python` and `pip` are another installation's.",
        ),
        // uv's users run `uv run` and never activate anything.
        (false, true) => (
            Severity::Info,
            format!("{} is here but not active: `python` is {python}", wanted.root),
            "The environment is not activated in this shell; `uv run` uses it all the same.",
        ),
    };
    let activate = match wanted.kind {
        EnvKind::Conda => format!("conda activate {}", quote(&wanted.root)),
        _ => format!("source {}", quote(&format!("{}/bin/activate", wanted.root))),
    };
    let finding = RULE
        .finding(severity, Confidence::Certain, title)
        .evidence(format!("python is {python}"), on_path.found_by.clone())
        .evidence(format!("environment {}", wanted.root), wanted.found_by.clone())
        .cause(cause)
        .fix([
            activate,
            "hash -r".to_owned(),
            "# or name the interpreter each time:".to_owned(),
            format!("{} --version", quote(&python_path(wanted))),
        ])
        .finish();
    Some(finding)
}

fn is_inside(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let system = || {
            env("/usr")
                .system()
                .found_by("python on PATH")
                .interpreter(Some("/usr/bin/python3"), Some("/usr/bin/python3.12"))
        };
        let venv = |how: &str| env("/w/.venv").found_by(how);
        vec![
            Case::new(
                "VIRTUAL_ENV and PATH name different environments",
                machines::gh200(),
                vec![venv("VIRTUAL_ENV").build(), system().build()],
            )
            .finds(
                Error,
                Certain,
                &[
                    "VIRTUAL_ENV names /w/.venv, but `python` is /usr/bin/python3",
                    "source /w/.venv/bin/activate",
                    "/w/.venv/bin/python --version",
                ],
            ),
            Case::new(
                "conda's prefix",
                machines::a10(),
                vec![env("/opt/c").conda().found_by("CONDA_PREFIX").build(), system().build()],
            )
            .finds(Error, Certain, &["conda activate /opt/c"]),
            Case::new(
                "a .venv that was never activated",
                machines::x86(),
                vec![venv("./.venv").build(), system().build()],
            )
            .finds(Warning, Certain, &["here but not active"]),
            Case::new(
                "uv needs no activation",
                machines::x86(),
                vec![venv("./.venv").uv().build(), system().build()],
            )
            .finds(Info, Certain, &["uv run"]),
            Case::new(
                "an interpreter elsewhere",
                machines::gh200(),
                vec![
                    venv("--venv")
                        .interpreter(Some("/usr/bin/python3"), Some("/usr/bin/python3.12"))
                        .build(),
                ],
            )
            .finds(
                Error,
                Certain,
                &[
                    "/w/.venv runs /usr/bin/python3, which is outside it",
                    "python3 -m venv --clear /w/.venv",
                ],
            ),
            Case::new(
                "a sibling folder with the same beginning is outside",
                machines::x86(),
                vec![
                    venv("--venv")
                        .uv()
                        .interpreter(Some("/w/.venv2/bin/python"), Some("/usr/bin/python3.12"))
                        .build(),
                ],
            )
            .finds(Error, Certain, &["uv venv --clear --python 3.12.3 /w/.venv"]),
            Case::new(
                "no interpreter",
                machines::x86(),
                vec![venv("--venv").interpreter(None, None).build()],
            )
            .finds(Error, Likely, &["/w/.venv has no interpreter: no bin/python"]),
            Case::new(
                "the Python it was made from was removed",
                machines::x86(),
                vec![
                    venv("VIRTUAL_ENV").uv().interpreter(Some("/w/.venv/bin/python"), None).build(),
                    system().build(),
                ],
            )
            .finds(Error, Likely, &["/w/.venv/bin/python leads to no file", "unset VIRTUAL_ENV"])
            .without(&["source /w"]),
            Case::new(
                "Homebrew upgraded the Python it was made from",
                machines::x86(),
                vec![
                    venv("--venv")
                        .interpreter(
                            Some("/w/.venv/bin/python"),
                            Some("/opt/homebrew/Cellar/python@3.13/3.13.1/bin/python3.13"),
                        )
                        .build(),
                ],
            )
            .finds(
                Error,
                Certain,
                &[
                    "the interpreter of /w/.venv is Python 3.13, and its packages are Python 3.12's",
                    "/w/.venv/bin/python leads to /opt/homebrew/Cellar/python@3.13/3.13.1/bin/python3.13",
                    "ls /w/.venv/lib/python3.12/site-packages",
                    "python3 -m venv --clear /w/.venv",
                ],
            ),
            Case::new(
                "a name without a release",
                machines::x86(),
                vec![
                    venv("--venv")
                        .interpreter(Some("/w/.venv/bin/python"), Some("/opt/py/bin/python3"))
                        .build(),
                ],
            ),
            Case::new("its own interpreter", machines::x86(), vec![venv("VIRTUAL_ENV").build()]),
            Case::new(
                "--venv may differ from PATH",
                machines::x86(),
                vec![venv("--venv").build(), system().build()],
            ),
            Case::new("only a system Python", machines::x86(), vec![system().build()]),
        ]
    }
}
