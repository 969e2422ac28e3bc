//! Checks against package indexes that the files that remedies install exist. Missing ones are replaced by available ones,
//! or by a sentence. Each remedy is checked against the index that it names, such as one of PyTorch's, or else the default.

use crate::index::{IndexAnswer, PackageQuery, TargetHost};
use facts::{
    DoctorReport, Finding, Install, Machine, PackageTarget, Platform, PyEnv, RemedyStep, Severity,
};
use knowledge::{Requirement, minor_of};

/// The outcome of asking an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Availability {
    /// No remedy installs anything.
    Nothing,
    /// An index was not asked, or did not answer.
    Unanswered(String),
    /// All indexes answered.
    Answered,
}

/// Asks an index by its address (`None`: the default one) which requirements it has files for, for a machine; the error
/// says why it did not answer.
type AskIndex<'a> =
    dyn Fn(Option<&str>, &[PackageQuery], TargetHost<'_>) -> Result<Vec<IndexAnswer>, String> + 'a;

/// The answers of an index; empty if it gave none.
struct IndexAnswers {
    /// `None` is the default index of uv and pip.
    index: Option<String>,
    wanted: Vec<PackageQuery>,
    offers: Vec<IndexAnswer>,
}

/// Asks each index about all remedies at once, and changes those whose files do not exist.
pub fn check_availability(report: &mut DoctorReport, ask: &AskIndex) -> Availability {
    let mut all: Vec<IndexAnswers> = Vec::new();
    let mut host = None;
    for finding in report.findings.iter().filter(|it| it.severity != Severity::Info) {
        for (target, install) in finding.remedy.iter().filter_map(install_of) {
            host = host.or_else(|| host_of(&report.machine, env_of(&report.envs, target)?));
            let wanted = requirements(install);
            match all.iter_mut().find(|one| one.index == install.index) {
                Some(one) => one.wanted.extend(wanted),
                None => all.push(IndexAnswers {
                    index: install.index.clone(),
                    wanted: wanted.collect(),
                    offers: Vec::new(),
                }),
            }
        }
    }
    all.retain(|one| !one.wanted.is_empty());
    let Some(host) = host.filter(|_| !all.is_empty()) else { return Availability::Nothing };
    let mut unanswered = None;
    for one in &mut all {
        one.wanted.dedup();
        match ask(one.index.as_deref(), &one.wanted, host) {
            Ok(offers) => one.offers = offers,
            Err(reason) => drop(unanswered.get_or_insert(reason)),
        }
    }
    for finding in report.findings.iter_mut().filter(|it| it.severity != Severity::Info) {
        correct(finding, &report.envs, &all);
    }
    unanswered.map_or(Availability::Answered, Availability::Unanswered)
}

fn install_of(step: &RemedyStep) -> Option<(&PackageTarget, &Install)> {
    match step {
        RemedyStep::Install { target, install } => Some((target, install)),
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

/// Replaces the installs of a finding for which their index has no file.
fn correct(finding: &mut Finding, envs: &[PyEnv], answers: &[IndexAnswers]) {
    let mut changed = false;
    let mut steps = Vec::new();
    for step in &finding.remedy {
        let lacks = install_of(step).and_then(|(target, install)| {
            let of_index = answers.iter().find(|one| one.index == install.index)?;
            let found = requirements(install).find_map(|wanted| {
                let mut answered = of_index.wanted.iter().zip(&of_index.offers);
                match answered.find(|(one, _)| **one == wanted)?.1 {
                    IndexAnswer::Lacks { reason, newest } => Some((wanted.package, reason, newest)),
                    IndexAnswer::Has(_) => None,
                }
            });
            found.map(|found| (target, &install.index, found))
        });
        let Some((target, index, (package, reason, newest))) = lacks else {
            steps.push(step.clone());
            continue;
        };
        changed = true;
        let publisher = index.as_deref().unwrap_or("PyPI");
        let installed = env_of(envs, target).and_then(|env| env.dist(&package));
        let installed = installed.and_then(|dist| dist.version.split('+').next());
        match newest.as_ref().filter(|newest| Some(newest.as_str()) != installed) {
            Some(newest) => {
                let text = format!(
                    "{publisher} {reason}; the newest release of {package} that installs here, which may not fit either:"
                );
                let specs = vec![format!("{package}=={newest}")];
                let install = Install { specs, index: index.clone(), ..Install::default() };
                steps.push(RemedyStep::Note { text });
                steps.push(RemedyStep::Install { target: target.clone(), install });
            }
            None => steps.push(RemedyStep::Manual {
                text: format!(
                    "{publisher} {reason} of {package}, and no other release that installs here"
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
        let checked = check_availability(&mut report, &|index, wanted, host| {
            assert_eq!((index, wanted.len(), wanted[0].from_source), (None, 1, true), "{wanted:?}");
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
            check_availability(&mut asked, &|_, _, _| Ok(vec![IndexAnswer::Has("0.14.0".into())]));
        assert_eq!((checked, &asked), (Availability::Answered, &before));
        let checked = check_availability(&mut asked, &|_, _, _| Err("no answer".into()));
        assert_eq!((checked, &asked), (Availability::Unanswered("no answer".into()), &before));
    }

    #[test]
    fn each_remedy_is_checked_against_the_index_that_it_names() {
        const TORCH: &str = "https://download.pytorch.org/whl/cu126";
        let mut asked = report();
        let install = Install {
            specs: vec!["torch==2.9.9".into()],
            index: Some(TORCH.into()),
            ..Install::default()
        };
        let target = PackageTarget { python: "/v/bin/python".into(), tool: PackageTool::Uv };
        asked.findings[0].remedy.push(RemedyStep::Install { target, install });
        // The default index does not answer, and its remedy stays; the other one has another release.
        let checked = check_availability(&mut asked, &|index, wanted, _| match index {
            None => Err("no answer".into()),
            Some(index) => {
                assert_eq!((index, wanted[0].package.as_str()), (TORCH, "torch"));
                let reason = "has no release ==2.9.9".to_owned();
                Ok(vec![IndexAnswer::Lacks { reason, newest: Some("2.9.1+cu126".into()) }])
            }
        });
        assert_eq!(checked, Availability::Unanswered("no answer".into()));
        let finding = &asked.findings[0];
        assert_eq!(finding.remedy[0], report().findings[0].remedy[0]);
        let note = format!("# {TORCH} has no release ==2.9.9; the newest release of torch");
        assert!(finding.fix[1].starts_with(&note), "{:?}", finding.fix);
        let install =
            format!("uv pip install --python /v/bin/python torch==2.9.1+cu126 --index-url {TORCH}");
        assert_eq!(finding.fix[2], install);
    }
}
