//! Combines the remedies of all findings about an environment into one set of changes without conflicts.

use super::action::{FixAction, actions, name_of};
use super::packages::Packages;
use facts::{CompactCollect, CompactSort};
use facts::{Finding, Install, PyEnv, Severity};
use std::collections::{BTreeMap, BTreeSet};

/// Packages to install together, from one index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstallSet {
    /// Indices of the findings it is for.
    pub findings: Vec<usize>,
    /// The packages.
    pub install: Install,
    /// Packages that are reinstalled even if their version does not change.
    pub again: BTreeSet<String>,
}

/// The changes, before an index is asked for versions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remedy {
    /// Packages to remove, each with the finding that requires it.
    pub remove: BTreeMap<String, usize>,
    /// Packages to install, in order.
    pub sets: Vec<InstallSet>,
    /// Findings that are not fixed, each with the reason.
    pub left: Vec<(usize, String)>,
}

/// The changes that one finding requires.
struct RequiredChanges {
    finding: usize,
    remove: BTreeSet<String>,
    installs: Vec<(Install, BTreeSet<String>)>,
    /// Whether torch itself changes: all other findings are then checked again afterwards.
    changes_torch: bool,
}

impl Remedy {
    /// Combines all errors and warnings whose commands are for this environment, except those in `not`, which have a
    /// reason.
    pub fn of(
        env: &PyEnv,
        findings: &[Finding],
        packages: &Packages,
        not: &BTreeMap<usize, String>,
    ) -> Self {
        let mut remedy = Self::default();
        let mut wishes = Vec::new();
        for (index, finding) in findings.iter().enumerate() {
            if finding.severity == Severity::Info || !is_for(env, finding) {
                continue;
            }
            let required_changes = match not.get(&index) {
                Some(why) => Err(why.clone()),
                None => required_changes(index, finding, packages),
            };
            match required_changes {
                Ok(required_changes) => wishes.push(required_changes),
                Err(why) => remedy.left.push((index, why)),
            }
        }
        // Findings are sorted by severity; a change of torch fixes more of them than any other.
        wishes.compact_sort_by_key(|required_changes| !required_changes.changes_torch);
        let mut torch_by = None;
        for required_changes in wishes {
            let title =
                |by: usize| format!("it is checked again after `{}` is fixed", findings[by].rule);
            match torch_by.or_else(|| remedy.conflicting_finding(&required_changes)) {
                Some(by) => remedy.left.push((required_changes.finding, title(by))),
                None => {
                    torch_by = required_changes.changes_torch.then_some(required_changes.finding);
                    remedy.add(required_changes);
                }
            }
        }
        remedy.protect(packages);
        remedy.keep_torch(packages);
        remedy.left.compact_sort();
        remedy
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.sets.is_empty()
    }

    /// The finding that requires the same package in another version or from another source.
    fn conflicting_finding(&self, required_changes: &RequiredChanges) -> Option<usize> {
        required_changes.installs.iter().find_map(|(install, _)| {
            self.sets.iter().find_map(|set| {
                let differs = install.specs.iter().any(|spec| {
                    let same = |other: &&String| name_of(other) == name_of(spec);
                    set.install.specs.iter().find(same).is_some_and(|other| {
                        other != spec
                            || set.install.index != install.index
                            || set.install.from_source != install.from_source
                    })
                });
                differs.then(|| set.findings.first().copied()).flatten()
            })
        })
    }

    fn add(&mut self, required_changes: RequiredChanges) {
        let installed: BTreeSet<String> = self
            .sets
            .iter()
            .flat_map(|set| set.install.specs.iter().map(|spec| name_of(spec)))
            .compact_set();
        for name in required_changes.remove {
            if !installed.contains(&name) {
                self.remove.entry(name).or_insert(required_changes.finding);
            }
        }
        for (install, again) in required_changes.installs {
            for spec in &install.specs {
                self.remove.remove(&name_of(spec));
            }
            let alike = |set: &&mut InstallSet| {
                set.install.index == install.index
                    && set.install.no_deps == install.no_deps
                    && set.install.from_source.is_empty()
                    && install.from_source.is_empty()
            };
            match self.sets.iter_mut().find(alike) {
                Some(set) => {
                    let new: Vec<String> = install
                        .specs
                        .into_iter()
                        .filter(|spec| !set.install.specs.contains(spec))
                        .collect();
                    set.install.specs.extend(new);
                    set.again.extend(again);
                    set.findings.push(required_changes.finding);
                }
                None => self.sets.push(InstallSet {
                    findings: vec![required_changes.finding],
                    install,
                    again,
                }),
            }
        }
    }

    /// Keeps packages that remaining packages require.
    fn protect(&mut self, packages: &Packages) {
        loop {
            let going: BTreeSet<String> = self.remove.keys().cloned().compact_set();
            let kept = going.iter().find(|name| packages.is_required(name, &going)).cloned();
            let Some((name, finding)) = kept.and_then(|name| self.remove.remove_entry(&name))
            else {
                return;
            };
            let wanted = self.remove.values().any(|other| *other == finding)
                || self.sets.iter().any(|set| set.findings.contains(&finding));
            if !wanted {
                self.left.push((finding, format!("another package requires {name}")));
            }
        }
    }

    /// Keeps the installed torch for all resolutions, unless torch itself changes.
    fn keep_torch(&mut self, packages: &Packages) {
        let Some(version) = packages.version("torch") else { return };
        let named =
            |set: &InstallSet| set.install.specs.iter().any(|spec| name_of(spec) == "torch");
        if self.remove.contains_key("torch") || self.sets.iter().any(named) {
            return;
        }
        for set in self.sets.iter_mut().filter(|set| !set.install.no_deps) {
            set.install.specs.push(format!("torch=={version}"));
        }
    }
}

/// Whether the remedy changes this environment.
pub fn is_for(env: &PyEnv, finding: &Finding) -> bool {
    let python = super::python(env);
    finding.remedy.iter().any(|step| step.python() == Some(&python))
}

fn required_changes(
    index: usize,
    finding: &Finding,
    packages: &Packages,
) -> Result<RequiredChanges, String> {
    let mut required_changes = RequiredChanges {
        finding: index,
        remove: BTreeSet::new(),
        installs: Vec::new(),
        changes_torch: false,
    };
    for action in actions(&finding.remedy)? {
        match action {
            FixAction::Uninstall(names) => required_changes.remove.extend(names),
            FixAction::Install(install) => {
                let mut again = BTreeSet::new();
                for name in install.specs.iter().map(|spec| name_of(spec)) {
                    // A package that is removed and installed is reinstalled instead, so that it is never missing.
                    if required_changes.remove.remove(&name) || install.reinstall {
                        again.insert(name);
                    }
                }
                required_changes.installs.push((install, again));
            }
        }
    }
    let torch = packages.version("torch").map(public);
    required_changes.changes_torch = required_changes.remove.contains("torch")
        || required_changes.installs.iter().any(|(install, again)| {
            let spec = install.specs.iter().find(|spec| name_of(spec) == "torch");
            spec.is_some_and(|spec| {
                again.contains("torch")
                    || spec.split_once("==").map(|(_, version)| public(version)) != torch
            })
        });
    Ok(required_changes)
}

fn public(version: &str) -> &str {
    version.split('+').next().unwrap_or(version)
}
