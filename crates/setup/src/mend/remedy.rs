//! One set of changes for all findings about an environment: what one of them installs, no other takes away.

use super::action::{Action, actions, name_of};
use super::packages::Packages;
use facts::{CompactCollect, CompactSort};
use facts::{Finding, Install, PyEnv, Severity};
use std::collections::{BTreeMap, BTreeSet};

/// What is to be installed together, from one index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Set {
    /// Which findings it is for, by their place in the list.
    pub findings: Vec<usize>,
    /// What is installed.
    pub install: Install,
    /// Packages that are installed again whether or not their version changes.
    pub again: BTreeSet<String>,
}

/// What is to be changed, before anybody asked an index for versions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remedy {
    /// Packages that are removed, each with the finding that wants it.
    pub remove: BTreeMap<String, usize>,
    /// What is installed, in order.
    pub sets: Vec<Set>,
    /// Findings that it does nothing about, each with the reason.
    pub left: Vec<(usize, String)>,
}

/// What one finding wants.
struct Wish {
    finding: usize,
    remove: BTreeSet<String>,
    installs: Vec<(Install, BTreeSet<String>)>,
    /// Whether torch itself becomes another one: whatever else is wrong is looked at again after that.
    changes_torch: bool,
}

impl Remedy {
    /// Of all errors and warnings whose commands are for this environment, but those that `not` names with a reason.
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
            let wish = match not.get(&index) {
                Some(why) => Err(why.clone()),
                None => wish(index, finding, packages),
            };
            match wish {
                Ok(wish) => wishes.push(wish),
                Err(why) => remedy.left.push((index, why)),
            }
        }
        // Findings come worst first; another torch answers more of them than anything else does.
        wishes.compact_sort_by_key(|wish| !wish.changes_torch);
        let mut torch_by = None;
        for wish in wishes {
            let title = |by: usize| {
                format!("it is looked at again after `{}` is mended", findings[by].rule)
            };
            match torch_by.or_else(|| remedy.rival(&wish)) {
                Some(by) => remedy.left.push((wish.finding, title(by))),
                None => {
                    torch_by = wish.changes_torch.then_some(wish.finding);
                    remedy.add(wish);
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

    /// The finding that wants one of the same packages in another version or from another place.
    fn rival(&self, wish: &Wish) -> Option<usize> {
        wish.installs.iter().find_map(|(install, _)| {
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

    fn add(&mut self, wish: Wish) {
        let installed: BTreeSet<String> = self
            .sets
            .iter()
            .flat_map(|set| set.install.specs.iter().map(|spec| name_of(spec)))
            .compact_set();
        for name in wish.remove {
            if !installed.contains(&name) {
                self.remove.entry(name).or_insert(wish.finding);
            }
        }
        for (install, again) in wish.installs {
            for spec in &install.specs {
                self.remove.remove(&name_of(spec));
            }
            let alike = |set: &&mut Set| {
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
                    set.findings.push(wish.finding);
                }
                None => self.sets.push(Set { findings: vec![wish.finding], install, again }),
            }
        }
    }

    /// What a package that stays requires is not removed.
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

    /// Whatever is resolved anew stays with the torch that is here, unless torch is what changes.
    fn keep_torch(&mut self, packages: &Packages) {
        let Some(version) = packages.version("torch") else { return };
        let named = |set: &Set| set.install.specs.iter().any(|spec| name_of(spec) == "torch");
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

fn wish(index: usize, finding: &Finding, packages: &Packages) -> Result<Wish, String> {
    let mut wish = Wish {
        finding: index,
        remove: BTreeSet::new(),
        installs: Vec::new(),
        changes_torch: false,
    };
    for action in actions(&finding.remedy)? {
        match action {
            Action::Uninstall(names) => wish.remove.extend(names),
            Action::Install(install) => {
                let mut again = BTreeSet::new();
                for name in install.specs.iter().map(|spec| name_of(spec)) {
                    // Removed and installed is installed again: nothing is gone before its successor is there.
                    if wish.remove.remove(&name) || install.reinstall {
                        again.insert(name);
                    }
                }
                wish.installs.push((install, again));
            }
        }
    }
    let torch = packages.version("torch").map(public);
    wish.changes_torch = wish.remove.contains("torch")
        || wish.installs.iter().any(|(install, again)| {
            let spec = install.specs.iter().find(|spec| name_of(spec) == "torch");
            spec.is_some_and(|spec| {
                again.contains("torch")
                    || spec.split_once("==").map(|(_, version)| public(version)) != torch
            })
        });
    Ok(wish)
}

fn public(version: &str) -> &str {
    version.split('+').next().unwrap_or(version)
}
