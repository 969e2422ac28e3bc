//! The steps of a remedy that firstlight may run: package changes of uv and pip, and nothing else.

use facts::{Install, RemedyStep};

/// The change that one step makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Packages are installed.
    Install(Install),
    /// Packages are removed, by their normalised names.
    Uninstall(Vec<String>),
}

/// The normalised name that a requirement begins with.
pub(super) fn name_of(spec: &str) -> String {
    let end = spec.find(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c)));
    facts::Dist::normalise(&spec[..end.unwrap_or(spec.len())])
}

/// The changes that steps make, up to the first alternative.
///
/// # Errors
/// Why they are not run, in a few words: a step is a person's, needs root, or is no package change.
pub fn actions(steps: &[RemedyStep]) -> Result<Vec<Action>, String> {
    let mut found = Vec::new();
    for step in steps {
        match step {
            RemedyStep::Alternative { .. } => break,
            RemedyStep::Note { .. } | RemedyStep::Inspect { .. } => {}
            RemedyStep::Manual { text } => return Err(format!("a step is yours: {text}")),
            RemedyStep::Conda { .. } => {
                return Err(format!("conda's changes are yours to make: {step}"));
            }
            RemedyStep::Command { command } => return Err(not_run(command)),
            RemedyStep::Install { install, .. } => {
                let plain = |spec: &&String| !spec.contains("://") && !spec.contains('/');
                if let Some(other) = install.specs.iter().find(|spec| !plain(spec)) {
                    return Err(format!("`{other}` is not from an index: {step}"));
                }
                let from_source = install.from_source.iter().map(|name| name_of(name)).collect();
                found.push(Action::Install(Install { from_source, ..install.clone() }));
            }
            RemedyStep::Uninstall { packages, .. } => {
                found.push(Action::Uninstall(packages.iter().map(|name| name_of(name)).collect()));
            }
        }
    }
    match found.is_empty() {
        true => Err("it has no command that changes a package".to_owned()),
        false => Ok(found),
    }
}

/// Why a command of the system or of a shell is not run.
fn not_run(command: &str) -> String {
    match command.split_whitespace().next() {
        Some("sudo") => format!("it needs root: {command}"),
        Some("export" | "unset" | "." | "source") => {
            format!("it belongs into your shell: {command}")
        }
        _ => format!("it is no package change: {command}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use facts::{PackageTarget, PackageTool};

    fn check(steps: &[RemedyStep], expect: Result<&[Action], &str>) {
        match (actions(steps), expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect, "{steps:?}"),
            (Err(why), Err(words)) => assert!(why.contains(words), "{why}"),
            (found, _) => panic!("{steps:?}: {found:?}"),
        }
    }

    #[test]
    fn package_changes_are_run_and_nothing_else_is() {
        let target = PackageTarget { python: "/v/bin/python".into(), tool: PackageTool::Uv };
        let installed = |specs: &[&str]| Install {
            specs: specs.iter().map(|spec| (*spec).to_owned()).collect(),
            ..Install::default()
        };
        let install = |specs: &[&str]| RemedyStep::Install {
            target: target.clone(),
            install: installed(specs),
        };
        let remove = RemedyStep::Uninstall {
            target: target.clone(),
            packages: vec!["torch".into(), "TorchVision".into()],
        };
        let removed = Action::Uninstall(vec!["torch".into(), "torchvision".into()]);
        let line = |line: &str| RemedyStep::from(line);
        check(
            &[remove.clone(), install(&["torch==2.9.0"])],
            Ok(&[removed, Action::Install(installed(&["torch==2.9.0"]))]),
        );
        let first = [
            line("# a build that fits:"),
            install(&["x"]),
            RemedyStep::Inspect { command: "uv pip check".into() },
            line("# or bring the driver:"),
            line("sudo reboot"),
        ];
        check(&first, Ok(&[Action::Install(installed(&["x"]))]));
        check(&[remove, line("# then install NVIDIA's wheel")], Err("a step is yours"));
        check(&[line("sudo apt-get install x")], Err("needs root"));
        check(&[line("export CUDA_HOME=/x")], Err("your shell"));
        check(&[line("rm -r /v/lib")], Err("no package change"));
        check(&[install(&["./x.whl"])], Err("`./x.whl` is not from an index"));
        check(&[RemedyStep::Inspect { command: "uv pip check".into() }], Err("no command"));
        let conda = RemedyStep::Conda { prefix: None, specs: vec!["x".into()], reinstall: false };
        check(&[conda], Err("conda's changes"));
        check(&[line("# nothing:")], Err("no command"));
    }
}
