//! The planning problem: a machine, the requested packages, and the limits, each of which can be dropped to test
//! whether it causes a conflict.

use super::catalogue::{Release, Requires, releases};
use crate::PlanRequest;
use crate::index::PublishedReleases;
use crate::request::RequestedPackage;
use facts::CompactSort;
use facts::{PlanRequirement, PlanTarget};
use knowledge::WheelTarget;
use knowledge::cuda_drivers::CudaSupport;
use knowledge::marker::MarkerEnvironment;
use knowledge::packages::{self, Package};
use knowledge::recipes::recipe;
use knowledge::{Arch, Minor};
use pep440_rs::VersionSpecifiers;
use std::collections::BTreeSet;

/// Default order of Pythons: 3.12 has wheels of most packages.
const PYTHONS: [Minor; 6] = [(3, 12), (3, 13), (3, 11), (3, 10), (3, 14), (3, 15)];

/// One limit. Dropping one never excludes a solution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Limit {
    /// The machine's glibc.
    Glibc,
    /// The requested Python.
    Python,
    /// The requested CUDA release.
    Cuda,
    /// Only wheels built by a project or a company.
    Trust,
    /// An item may not be built from source.
    Wheel(usize),
    /// The requirements in an item's METADATA.
    Pins(usize),
    /// The driver, which limits the CUDA release.
    Driver,
    /// The GPUs, which need code for their architecture.
    Gpu,
    /// An item's minimum compute capability.
    Floor(usize),
    /// The requested versions of an item.
    Versions(usize),
    /// The request for an item.
    Wanted(usize),
}

/// One package to choose a release of.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) want: PlanRequirement,
    /// Its platform marker, as written.
    pub(super) marker: Option<String>,
    pub(super) specifiers: VersionSpecifiers,
    pub(super) optional: bool,
    /// Newest first; empty for an unknown package.
    pub(super) releases: Vec<Release>,
    /// The user's requirement for an unknown package.
    pub(super) own: Option<Requires>,
    pub(super) package: Option<&'static Package>,
}

impl Item {
    fn of(wanted: &RequestedPackage, published: &PublishedReleases) -> Self {
        let want = &wanted.want;
        let line = format!("{}{}", want.package, want.specifiers);
        Self {
            own: Requires::parse(&line, &want.because),
            // The request has parsed these specifiers before.
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

    /// Whether a stack with it needs torch.
    pub(super) fn needs_torch(&self) -> bool {
        let mut requires = self.releases.iter().flat_map(|release| &release.requires);
        self.package.is_some() || requires.any(|row| row.name == "torch")
    }

    /// Its position in the order of installation; unknown packages precede those that may need them.
    pub(super) fn order(&self) -> u32 {
        self.package.map_or(2, |row| row.order)
    }

    /// `flash-attn==2.8.3`.
    pub(super) fn requirement(&self) -> String {
        format!("{}{}", self.want.package, self.want.specifiers)
    }
}

/// A machine and the requested packages.
#[derive(Debug)]
pub(super) struct Problem<'a> {
    pub(super) target: &'a PlanTarget,
    pub(super) arch: Option<Arch>,
    pub(super) reach: Option<CudaSupport>,
    pub(super) python: Option<Minor>,
    /// Candidate Pythons in order, without a requested one.
    candidates: Vec<Minor>,
    pub(super) cuda: Option<Minor>,
    pub(super) community: bool,
    /// The requested packages on this platform, in the order of installation.
    pub(super) items: Vec<Item>,
    /// The index of torch; `None` if no item needs it.
    pub(super) torch: Option<usize>,
    /// Packages that a marker excludes on this platform.
    pub(super) excluded: Vec<&'a RequestedPackage>,
}

impl<'a> Problem<'a> {
    pub(super) fn of(request: &'a PlanRequest, target: &'a PlanTarget) -> Self {
        Self::with(request, target, PYTHONS.to_vec())
    }

    /// The problem with only the machine's Pythons; `None` if one was requested, or none of them is usable.
    pub(super) fn of_here(request: &'a PlanRequest, target: &'a PlanTarget) -> Option<Self> {
        let here = PYTHONS.into_iter().filter(|python| request.pythons.contains(python));
        let here: Vec<Minor> = here.collect();
        (request.python.is_none() && !here.is_empty()).then(|| Self::with(request, target, here))
    }

    fn with(request: &'a PlanRequest, target: &'a PlanTarget, candidates: Vec<Minor>) -> Self {
        let python = request.python.unwrap_or(candidates[0]);
        let platform =
            MarkerEnvironment { os: &target.os, arch: &target.arch, python: Some(python) };
        let (here, excluded): (Vec<&RequestedPackage>, Vec<&RequestedPackage>) = request
            .wants
            .iter()
            .partition(|wanted| wanted.marker.as_ref().is_none_or(|marker| marker.holds(platform)));
        let published = &request.published;
        let of = |wanted: &RequestedPackage| Item::of(wanted, published);
        let mut items: Vec<Item> = merged(here).iter().map(of).collect();
        let needed = items.is_empty() || items.iter().any(Item::needs_torch);
        if needed && !items.iter().any(|item| item.name() == "torch") {
            let by = items.iter().find(|item| item.needs_torch());
            let because = by.map_or("there are no other requirements".to_owned(), |item| {
                format!("{} needs it", item.name())
            });
            items.extend(RequestedPackage::parse("torch", &because).ok().as_ref().map(of));
        }
        items.compact_sort_by_key(Item::order);
        // Tegra's driver has other version numbers, to which the minimum driver versions do not apply.
        let driver = target.driver.as_deref().filter(|_| !target.tegra);
        Self {
            target,
            arch: Arch::parse(&target.arch),
            reach: CudaSupport::of(target.cuda_limit, driver),
            python: request.python,
            candidates,
            cuda: request.cuda,
            community: request.community,
            torch: items.iter().position(|item| item.name() == "torch"),
            items,
            excluded,
        }
    }

    pub(super) fn pythons(&self, dropped: &IgnoredLimits) -> Vec<Minor> {
        match self.python.filter(|_| !dropped.contains(&Limit::Python)) {
            Some(python) => vec![python],
            None if dropped.contains(&Limit::Python) => PYTHONS.to_vec(),
            None => self.candidates.clone(),
        }
    }

    /// Whether installing an item from source compiles GPU code; otherwise the source counts as a wheel.
    pub(super) fn compiles(&self, item: usize) -> bool {
        self.items[item].package.is_none_or(|row| row.compiles)
    }

    /// Whether an item may be compiled if no wheel fits.
    pub(super) fn may_build(&self, item: usize, dropped: &IgnoredLimits) -> bool {
        let allowed =
            self.items[item].want.source_build && recipe(self.items[item].name()).is_some();
        self.compiles(item) && (allowed || dropped.contains(&Limit::Wheel(item)))
    }

    pub(super) fn mac(&self) -> bool {
        self.target.os == "macos"
    }

    /// Whether the target uses CUDA.
    pub(super) fn has_gpu(&self) -> bool {
        !self.target.gpus.is_empty() && !self.mac()
    }

    pub(super) fn tags(&self, python: Minor, dropped: &IgnoredLimits) -> WheelTarget {
        let glibc = self.target.glibc.as_deref().filter(|_| !dropped.contains(&Limit::Glibc));
        let glibc = glibc.and_then(knowledge::minor_of);
        WheelTarget { python, arch: self.arch, mac: self.mac(), glibc }
    }

    pub(super) fn platform(&self, python: Minor) -> MarkerEnvironment<'_> {
        MarkerEnvironment { os: &self.target.os, arch: &self.target.arch, python: Some(python) }
    }

    /// The items that are left out if nothing fits.
    pub(super) fn optional(&self) -> Vec<usize> {
        (0..self.items.len()).filter(|item| self.items[*item].optional).collect()
    }

    /// All limits, those that a user can change most easily first.
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

/// Merges duplicate requests for a package, with the versions of both.
fn merged(wants: Vec<&RequestedPackage>) -> Vec<RequestedPackage> {
    let mut all: Vec<RequestedPackage> = Vec::new();
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

/// The limits that are ignored.
pub(super) type IgnoredLimits = BTreeSet<Limit>;
