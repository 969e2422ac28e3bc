//! Remedies of the corpus may not make an environment worse. The test removes the packages that a remedy removes, and takes
//! the packages that it installs from the healthy twin.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

use crate::judge::{Pair, Twin};
use crate::world::{Report, World};
use crate::{HEALTHY, ROWS};
use facts::Severity;
use pep440_rs::{Version, VersionSpecifiers};
use setup::fix::{FixAction, actions};
use std::collections::BTreeSet;

/// Errors and warnings by rule and title.
fn findings(report: &Report) -> BTreeSet<(&str, &str)> {
    let wrong = report.findings.iter().filter(|finding| finding.severity != Severity::Info);
    wrong.map(|finding| (finding.rule.as_str(), finding.title.as_str())).collect()
}

/// The package that a requirement names, if the twin has a version that it allows.
fn offered(twin: &World, spec: &str) -> Option<String> {
    let end = spec.find(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c)));
    let (name, constraint) = spec.split_at(end.unwrap_or(spec.len()));
    let wanted: VersionSpecifiers = constraint.parse().ok()?;
    let version: Version = twin.version_of(name)?.parse().ok()?;
    wanted.contains(&version).then(|| name.to_owned())
}

/// Applies one remedy; `None` if its packages are not in the twin.
fn apply_remedy(world: &World, twin: &World, all: &[FixAction]) -> Option<()> {
    let offers = |action: &FixAction| match action {
        FixAction::Uninstall(_) => Some(Vec::new()),
        FixAction::Install(install) => {
            install.specs.iter().map(|spec| offered(twin, spec)).collect::<Option<Vec<String>>>()
        }
    };
    // All packages have to be available before anything is changed.
    let offered: Vec<Vec<String>> = all.iter().map(offers).collect::<Option<_>>()?;
    for (action, names) in all.iter().zip(offered) {
        match action {
            FixAction::Uninstall(names) => names.iter().for_each(|name| world.uninstall(name)),
            FixAction::Install(_) => names.iter().for_each(|name| world.install_from(twin, name)),
        }
    }
    Some(())
}

/// The number of applied remedies of a pair's broken environment, and the findings that each added.
fn run(pair: &Pair) -> (usize, Vec<String>) {
    let (mut ran, mut worse) = (0, Vec::new());
    let number = (pair.build)(Twin::Broken).doctor().findings.len();
    for index in 0..number {
        let (world, twin) = ((pair.build)(Twin::Broken), (pair.build)(Twin::Healthy));
        let before = world.doctor();
        let finding = &before.findings[index];
        let Ok(all) = actions(&finding.remedy) else { continue };
        if apply_remedy(&world, &twin, &all).is_none() {
            continue;
        }
        ran += 1;
        let after = world.doctor();
        let new: Vec<_> =
            findings(&after).difference(&findings(&before)).copied().collect::<Vec<_>>();
        worse.extend(new.iter().map(|(rule, title)| {
            format!("{}: after {:?} of {}: {rule}: {title}", pair.name, finding.fix, finding.rule)
        }));
    }
    (ran, worse)
}

#[test]
fn remedies_add_no_findings() {
    let pairs = ROWS.iter().map(|(_, pair)| pair).chain(HEALTHY);
    let results: Vec<(usize, Vec<String>)> = pairs.map(run).collect();
    let ran: usize = results.iter().map(|(ran, _)| ran).sum();
    let worse: Vec<&String> = results.iter().flat_map(|(_, worse)| worse).collect();
    assert!(worse.is_empty(), "{}", worse.iter().map(|it| format!("{it}\n")).collect::<String>());
    assert!(ran >= 8, "{ran} remedies were carried out");
}
