//! Checks against a package index that the files that remedies install exist. Missing ones are replaced by available
//! ones, or by a sentence.

use crate::index::{IndexAnswer, PackageQuery, TargetHost};
use facts::{
    DoctorReport, Finding, Install, Machine, PackageTarget, Platform, PyEnv, RemedyStep, Severity,
};
use knowledge::{Requirement, minor_of};

/// The outcome of asking an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Availability {
    /// No remedy installs anything from the default index.
    Nothing,
    /// It was not asked, or did not answer.
    Unanswered(String),
    /// It answered.
    Answered,
}

/// Asks an index which requirements it has files for, for a machine; the error says why it did not answer.
type AskIndex<'a> =
    dyn Fn(&[PackageQuery], TargetHost<'_>) -> Result<Vec<IndexAnswer>, String> + 'a;

/// Asks about all remedies at once, and changes those whose files do not exist.
pub fn check_availability(report: &mut DoctorReport, ask: &AskIndex) -> Availability {
    let mut wanted: Vec<PackageQuery> = Vec::new();
    let mut host = None;
    for finding in report.findings.iter().filter(|it| it.severity != Severity::Info) {
        for (target, install) in finding.remedy.iter().filter_map(from_default_index) {
            host = host.or_else(|| host_of(&report.machine, env_of(&report.envs, target)?));
            wanted.extend(requirements(install));
        }
    }
    let Some(host) = host.filter(|_| !wanted.is_empty()) else { return Availability::Nothing };
    wanted.dedup();
    let offers = match ask(&wanted, host) {
        Ok(offers) => offers,
        Err(reason) => return Availability::Unanswered(reason),
    };
    let answers: Vec<(PackageQuery, IndexAnswer)> = wanted.into_iter().zip(offers).collect();
    for finding in report.findings.iter_mut().filter(|it| it.severity != Severity::Info) {
        correct(finding, &report.envs, &answers);
    }
    Availability::Answered
}

/// An install from the default index of uv and pip.
fn from_default_index(step: &RemedyStep) -> Option<(&PackageTarget, &Install)> {
    match step {
        RemedyStep::Install { target, install } if install.index.is_none() => {
            Some((target, install))
        }
        _ => None,
    }
}

fn requirements(install: &Install) -> impl Iterator<Item = PackageQuery> {
    install.specs.iter().filter_map(|spec| {
        let read = Requirement::parse(spec)?;
        let package = facts::Dist::normalise(&read.name);
        let specifiers = read.constraint().parse().ok()?;
        let from_source = install.from_source.contains(&package);
        Some(PackageQuery { package, specifiers, from_source })
    })
}

fn env_of<'a>(envs: &'a [PyEnv], target: &PackageTarget) -> Option<&'a PyEnv> {
    envs.iter().find(|env| {
        env.interpreter.executable.as_ref() == Some(&target.python)
            || target.python.starts_with(&format!("{}/", env.root.trim_end_matches('/')))
    })
}

/// `None` if files are not for Linux, or the Python is unknown.
fn host_of<'a>(machine: &Machine, env: &PyEnv) -> Option<TargetHost<'a>> {
    let arch = match machine.platform {
        Platform::LinuxX86_64 => "x86_64",
        Platform::LinuxAarch64 => "aarch64",
        _ => return None,
    };
    let python = minor_of(&env.interpreter.version.as_ref()?.value)?;
    let libc = machine.os.libc.as_ref().map(|fact| fact.value.as_str());
    let glibc = libc.and_then(|libc| minor_of(libc.strip_prefix("glibc ")?));
    Some(TargetHost { python, arch, glibc })
}

/// Replaces the installs of a finding for which the index has no file.
fn correct(finding: &mut Finding, envs: &[PyEnv], answers: &[(PackageQuery, IndexAnswer)]) {
    let mut changed = false;
    let mut steps = Vec::new();
    for step in &finding.remedy {
        let lacks = from_default_index(step).and_then(|(target, install)| {
            let found = requirements(install).find_map(|wanted| {
                let (_, offer) = answers.iter().find(|(one, _)| *one == wanted)?;
                match offer {
                    IndexAnswer::Lacks { reason, newest } => Some((wanted.package, reason, newest)),
                    IndexAnswer::Has(_) => None,
                }
            });
            found.map(|found| (target, found))
        });
        let Some((target, (package, reason, newest))) = lacks else {
            steps.push(step.clone());
            continue;
        };
        changed = true;
        let installed = env_of(envs, target).and_then(|env| env.dist(&package));
        let installed = installed.and_then(|dist| dist.version.split('+').next());
        match newest.as_ref().filter(|newest| Some(newest.as_str()) != installed) {
            Some(newest) => {
                let text = format!(
                    "PyPI {reason}; the newest release of {package} that installs here, which may not fit either:"
                );
                let install =
                    Install { specs: vec![format!("{package}=={newest}")], ..Install::default() };
                steps.push(RemedyStep::Note { text });
                steps.push(RemedyStep::Install { target: target.clone(), install });
            }
            None => steps.push(RemedyStep::Manual {
                text: format!(
                    "PyPI {reason} of {package}, and no other release that installs here"
                ),
            }),
        }
    }
    if changed {
        finding.fix = steps.iter().map(ToString::to_string).collect();
        finding.remedy = steps;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use facts::{Confidence, Evidence, PackageTool};

    /// A finding whose remedy builds torchao 0.14.0, in an environment with that version.
    fn report() -> DoctorReport {
        let text = include_str!("availability/report.json");
        let mut report: DoctorReport = serde_json::from_str(text).expect("a report");
        let install = Install {
            specs: vec!["torchao==0.14.0".into()],
            from_source: vec!["torchao".into()],
            reinstall: true,
            no_deps: true,
            ..Install::default()
        };
        let target = PackageTarget { python: "/v/bin/python".into(), tool: PackageTool::Uv };
        let step = RemedyStep::Install { target, install };
        report.findings = vec![Finding {
            rule: "extension-other-torch".into(),
            severity: Severity::Warning,
            title: "torchao 0.14.0 was built for another torch".into(),
            evidence: vec![Evidence { what: "x".into(), source: "y".into() }],
            cause: "z".into(),
            fix: vec![step.to_string()],
            remedy: vec![step],
            confidence: Confidence::Certain,
            links: Vec::new(),
        }];
        report
    }

    fn fix(newest: Option<&str>) -> Vec<String> {
        let mut report = report();
        let checked = check_availability(&mut report, &|wanted, host| {
            assert_eq!((wanted.len(), wanted[0].from_source), (1, true), "{wanted:?}");
            assert_eq!((host.python, host.arch, host.glibc), ((3, 12), "x86_64", Some((2, 36))));
            let reason = "has no source distribution of 0.14.0".to_owned();
            Ok(vec![IndexAnswer::Lacks { reason, newest: newest.map(str::to_owned) }])
        });
        assert_eq!(checked, Availability::Answered);
        let finding = &report.findings[0];
        let texts: Vec<String> = finding.remedy.iter().map(ToString::to_string).collect();
        assert_eq!(finding.fix, texts);
        texts
    }

    #[test]
    fn a_build_without_sources_becomes_a_release_that_exists() {
        let lines = fix(Some("0.18.0"));
        assert!(lines[0].starts_with("# PyPI has no source distribution of 0.14.0"), "{lines:?}");
        assert_eq!(lines[1], "uv pip install --python /v/bin/python torchao==0.18.0");
        // The newest is already installed: there is nothing to install.
        for newest in [Some("0.14.0"), None] {
            let lines = fix(newest);
            assert!(lines.len() == 1 && lines[0].starts_with("# PyPI has no"), "{lines:?}");
        }
    }

    #[test]
    fn an_index_that_has_the_files_changes_nothing() {
        let (mut asked, before) = (report(), report());
        let checked =
            check_availability(&mut asked, &|_, _| Ok(vec![IndexAnswer::Has("0.14.0".into())]));
        assert_eq!((checked, &asked), (Availability::Answered, &before));
        let checked = check_availability(&mut asked, &|_, _| Err("no answer".into()));
        assert_eq!((checked, &asked), (Availability::Unanswered("no answer".into()), &before));
    }
}
