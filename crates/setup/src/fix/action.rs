//! The steps of a remedy that firstlight may run: package changes of uv and pip only.

use facts::{Install, RemedyStep};

/// The change of one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FixAction {
    /// Packages are installed.
    Install(Install),
    /// Packages are removed, by normalized name.
    Uninstall(Vec<String>),
}

/// The normalized name of a requirement.
pub(super) fn name_of(spec: &str) -> String {
    let end = spec.find(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c)));
    facts::Dist::normalise(&spec[..end.unwrap_or(spec.len())])
}

/// The changes of the steps, up to the first alternative.
///
/// # Errors
/// Why they are not run, in a few words: a step is for a person, needs root, or is not a package change.
pub fn actions(steps: &[RemedyStep]) -> Result<Vec<FixAction>, String> {
    let mut found = Vec::new();
    for step in steps {
        match step {
            RemedyStep::Alternative { .. } => break,
            RemedyStep::Note { .. } | RemedyStep::Inspect { .. } => {}
            RemedyStep::Manual { text } => return Err(format!("a manual step: {text}")),
            RemedyStep::Conda { .. } => {
                return Err(format!("changes of conda packages are manual: {step}"));
            }
            RemedyStep::Command { command } => return Err(not_run(command)),
            RemedyStep::Install { install, .. } => {
                let plain = |spec: &&String| !spec.contains("://") && !spec.contains('/');
                if let Some(other) = install.specs.iter().find(|spec| !plain(spec)) {
                    return Err(format!("`{other}` is not from an index: {step}"));
                }
                let from_source = install.from_source.iter().map(|name| name_of(name)).collect();
                found.push(FixAction::Install(Install { from_source, ..install.clone() }));
            }
            RemedyStep::Uninstall { packages, .. } => {
                found.push(FixAction::Uninstall(
                    packages.iter().map(|name| name_of(name)).collect(),
                ));
            }
        }
    }
    match found.is_empty() {
        true => Err("it has no command that changes a package".to_owned()),
        false => Ok(found),
    }
}

/// Why a system or shell command is not run.
fn not_run(command: &str) -> String {
    match command.split_whitespace().next() {
        Some("sudo") => format!("it needs root: {command}"),
        Some("export" | "unset" | "." | "source") => {
            format!("it changes your shell: {command}")
        }
        _ => format!("it does not change a package: {command}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use facts::{PackageTarget, PackageTool};

    fn check(steps: &[RemedyStep], expect: Result<&[FixAction], &str>) {
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
        let removed = FixAction::Uninstall(vec!["torch".into(), "torchvision".into()]);
        let line = |line: &str| RemedyStep::from(line);
        check(
            &[remove.clone(), install(&["torch==2.9.0"])],
            Ok(&[removed, FixAction::Install(installed(&["torch==2.9.0"]))]),
        );
        let first = [
            line("# a build that fits:"),
            install(&["x"]),
            RemedyStep::Inspect { command: "uv pip check".into() },
            line("# or bring the driver:"),
            line("sudo reboot"),
        ];
        check(&first, Ok(&[FixAction::Install(installed(&["x"]))]));
        check(&[remove, line("# then install NVIDIA's wheel")], Err("a manual step"));
        check(&[line("sudo apt-get install x")], Err("needs root"));
        check(&[line("export CUDA_HOME=/x")], Err("your shell"));
        check(&[line("rm -r /v/lib")], Err("does not change a package"));
        check(&[install(&["./x.whl"])], Err("`./x.whl` is not from an index"));
        check(&[RemedyStep::Inspect { command: "uv pip check".into() }], Err("no command"));
        let conda = RemedyStep::Conda { prefix: None, specs: vec!["x".into()], reinstall: false };
        check(&[conda], Err("changes of conda packages"));
        check(&[line("# nothing:")], Err("no command"));
    }
}
