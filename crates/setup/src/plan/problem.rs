//! What has to be solved: a machine, what is wanted of it, and the limits, each of which can be dropped to see whether it
//! is the one that stands in the way.

use super::catalogue::{Release, Requires, releases};
use super::fit::Tags;
use crate::Request;
use crate::index::Published;
use crate::request::Wanted;
use facts::CompactSort;
use facts::{PlanTarget, Want};
use knowledge::cuda_drivers::Reach;
use knowledge::marker::Platform;
use knowledge::packages::{self, Package};
use knowledge::recipes::recipe;
use knowledge::{Arch, Minor};
use pep440_rs::VersionSpecifiers;
use std::collections::BTreeSet;

/// Pythons in the order in which they are tried where none was asked for: 3.12 has wheels of most packages.
const PYTHONS: [Minor; 6] = [(3, 12), (3, 13), (3, 11), (3, 10), (3, 14), (3, 15)];

/// One limit. Dropping one never makes anything harder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Limit {
    /// The glibc of the machine.
    Glibc,
    /// The Python that was asked for.
    Python,
    /// The CUDA release that was asked for.
    Cuda,
    /// Only wheels that a project or a company built.
    Trust,
    /// An item may not be built from source.
    Wheel(usize),
    /// What an item's METADATA asks of other packages.
    Pins(usize),
    /// The driver, which runs no newer CUDA.
    Driver,
    /// The GPUs, which run only their own code.
    Gpu,
    /// An item starts at newer GPUs, or needs one.
    Floor(usize),
    /// The versions an item may have.
    Versions(usize),
    /// An item is wanted at all.
    Wanted(usize),
}

/// One package to find a release of.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) want: Want,
    /// For which platforms it was asked for, as written.
    pub(super) marker: Option<String>,
    pub(super) specifiers: VersionSpecifiers,
    pub(super) optional: bool,
    /// Newest first; empty for a package that no table knows.
    pub(super) releases: Vec<Release>,
    /// What the user asks of a package that no table knows.
    pub(super) own: Option<Requires>,
    pub(super) package: Option<&'static Package>,
}

impl Item {
    fn of(wanted: &Wanted, published: &Published) -> Self {
        let want = &wanted.want;
        let line = format!("{}{}", want.package, want.specifiers);
        Self {
            own: Requires::parse(&line, &want.because),
            // The request read these specifiers before.
            specifiers: wanted.want.specifiers.parse().unwrap_or_default(),
            optional: wanted.optional,
            releases: releases(&wanted.want.package, published),
            package: packages::package(&wanted.want.package),
            want: wanted.want.clone(),
            marker: wanted.marker.as_ref().map(ToString::to_string),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.want.package
    }

    /// Whether torch belongs into a stack with it.
    pub(super) fn needs_torch(&self) -> bool {
        let mut requires = self.releases.iter().flat_map(|release| &release.requires);
        self.package.is_some() || requires.any(|row| row.name == "torch")
    }

    /// Where it stands in the order of installing; what no table knows comes before what may need it.
    pub(super) fn order(&self) -> u32 {
        self.package.map_or(2, |row| row.order)
    }

    /// `flash-attn==2.8.3`.
    pub(super) fn requirement(&self) -> String {
        format!("{}{}", self.want.package, self.want.specifiers)
    }
}

/// A machine and what is wanted of it.
#[derive(Debug)]
pub(super) struct Problem<'a> {
    pub(super) target: &'a PlanTarget,
    pub(super) arch: Option<Arch>,
    pub(super) reach: Option<Reach>,
    pub(super) python: Option<Minor>,
    /// What may be taken where none was asked for, in the order in which they are tried.
    candidates: Vec<Minor>,
    pub(super) cuda: Option<Minor>,
    pub(super) community: bool,
    /// What is wanted on this platform, in the order of installing.
    pub(super) items: Vec<Item>,
    /// The item that is torch; `None` where nothing that is wanted needs it.
    pub(super) torch: Option<usize>,
    /// What a marker keeps off this platform.
    pub(super) excluded: Vec<&'a Wanted>,
}

impl<'a> Problem<'a> {
    pub(super) fn of(request: &'a Request, target: &'a PlanTarget) -> Self {
        Self::with(request, target, PYTHONS.to_vec())
    }

    /// The same with the machine's own Pythons alone; `None` where one was asked for, or none of them is any use.
    pub(super) fn of_here(request: &'a Request, target: &'a PlanTarget) -> Option<Self> {
        let here = PYTHONS.into_iter().filter(|python| request.pythons.contains(python));
        let here: Vec<Minor> = here.collect();
        (request.python.is_none() && !here.is_empty()).then(|| Self::with(request, target, here))
    }

    fn with(request: &'a Request, target: &'a PlanTarget, candidates: Vec<Minor>) -> Self {
        let python = request.python.unwrap_or(candidates[0]);
        let platform = Platform { os: &target.os, arch: &target.arch, python };
        let (here, excluded): (Vec<&Wanted>, Vec<&Wanted>) = request
            .wants
            .iter()
            .partition(|wanted| wanted.marker.as_ref().is_none_or(|marker| marker.holds(platform)));
        let published = &request.published;
        let of = |wanted: &Wanted| Item::of(wanted, published);
        let mut items: Vec<Item> = merged(here).iter().map(of).collect();
        let needed = items.is_empty() || items.iter().any(Item::needs_torch);
        if needed && !items.iter().any(|item| item.name() == "torch") {
            let by = items.iter().find(|item| item.needs_torch());
            let because = by.map_or("nothing else was asked for".to_owned(), |item| {
                format!("{} needs it", item.name())
            });
            items.extend(Wanted::parse("torch", &because).ok().as_ref().map(of));
        }
        items.compact_sort_by_key(Item::order);
        // Tegra's driver has a numbering of its own, which the table of floors is not about.
        let driver = target.driver.as_deref().filter(|_| !target.tegra);
        Self {
            target,
            arch: Arch::parse(&target.arch),
            reach: Reach::of(target.cuda_limit, driver),
            python: request.python,
            candidates,
            cuda: request.cuda,
            community: request.community,
            torch: items.iter().position(|item| item.name() == "torch"),
            items,
            excluded,
        }
    }

    pub(super) fn pythons(&self, dropped: &Dropped) -> Vec<Minor> {
        match self.python.filter(|_| !dropped.contains(&Limit::Python)) {
            Some(python) => vec![python],
            None if dropped.contains(&Limit::Python) => PYTHONS.to_vec(),
            None => self.candidates.clone(),
        }
    }

    /// Whether installing an item from source compiles GPU code: what does not counts as a wheel.
    pub(super) fn compiles(&self, item: usize) -> bool {
        self.items[item].package.is_none_or(|row| row.compiles)
    }

    /// Whether an item may be compiled, where no wheel fits.
    pub(super) fn may_build(&self, item: usize, dropped: &Dropped) -> bool {
        let allowed =
            self.items[item].want.source_build && recipe(self.items[item].name()).is_some();
        self.compiles(item) && (allowed || dropped.contains(&Limit::Wheel(item)))
    }

    pub(super) fn mac(&self) -> bool {
        self.target.os == "macos"
    }

    /// Whether CUDA computes here.
    pub(super) fn has_gpu(&self) -> bool {
        !self.target.gpus.is_empty() && !self.mac()
    }

    pub(super) fn tags(&self, python: Minor, dropped: &Dropped) -> Tags {
        let glibc = self.target.glibc.as_deref().filter(|_| !dropped.contains(&Limit::Glibc));
        let glibc = glibc.and_then(knowledge::minor_of);
        Tags { python, arch: self.arch, mac: self.mac(), glibc }
    }

    pub(super) fn platform(&self, python: Minor) -> Platform<'_> {
        Platform { os: &self.target.os, arch: &self.target.arch, python }
    }

    /// The items that are left out where nothing fits.
    pub(super) fn optional(&self) -> Vec<usize> {
        (0..self.items.len()).filter(|item| self.items[*item].optional).collect()
    }

    /// Every limit there is, those that a user can most easily change first.
    pub(super) fn limits(&self) -> Vec<Limit> {
        let each = |limit: fn(usize) -> Limit| (0..self.items.len()).map(limit);
        [Limit::Glibc, Limit::Python, Limit::Cuda, Limit::Trust]
            .into_iter()
            .chain(each(Limit::Wheel))
            .chain(each(Limit::Pins))
            .chain([Limit::Driver, Limit::Gpu])
            .chain(each(Limit::Floor))
            .chain(each(Limit::Versions))
            .chain(each(Limit::Wanted))
            .collect()
    }
}

/// What is asked for twice is wanted once, with the versions of both.
fn merged(wants: Vec<&Wanted>) -> Vec<Wanted> {
    let mut all: Vec<Wanted> = Vec::new();
    for wanted in wants {
        match all.iter_mut().find(|other| other.want.package == wanted.want.package) {
            None => all.push(wanted.clone()),
            Some(other) => {
                let both = [other.want.specifiers.as_str(), wanted.want.specifiers.as_str()];
                let both: Vec<&str> = both.into_iter().filter(|part| !part.is_empty()).collect();
                other.want.specifiers = both.join(",");
                other.want.source_build |= wanted.want.source_build;
                other.optional &= wanted.optional;
            }
        }
    }
    all
}

/// The limits that are not held.
pub(super) type Dropped = BTreeSet<Limit>;
