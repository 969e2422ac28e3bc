//! Assembles a stack into a plan.

use super::extension::{SelectedRelease, SelectionContext};
use super::pins::asked;
use super::problem::{IgnoredLimits, Problem};
use super::search::{RejectedTorch, Stack, companion_triton};
use super::torch::{Torch, pypi};
use super::warnings::warnings;
use crate::index::PublishedReleases;
use facts::CompactSort;
use facts::{InstallPlan, PackageOrigin, PlanIndex, PlannedPackage, RejectedCandidate, SCHEMA};
use knowledge::dotted;
use knowledge::packages;

/// Build tools are installed after torch and before built packages.
const TOOLS: u32 = 2;

pub(super) fn plan(
    problem: &Problem,
    stack: &Stack,
    passed: &[RejectedTorch],
    left_out: &[usize],
) -> InstallPlan {
    let nothing = IgnoredLimits::new();
    let torch = stack.torch.as_ref();
    let companion = torch.and_then(|torch| companion_triton(problem, torch));
    let companion = companion.as_ref();
    let context =
        SelectionContext { problem, torch, python: stack.python, dropped: &nothing, companion };
    let mut packages: Vec<(u32, PlannedPackage)> = stack
        .picks
        .iter()
        .map(|pick| (problem.items[pick.item].order(), package(problem, pick)))
        .collect();
    packages.extend(triton(&context, stack).map(|package| (1, package)));
    let tools = build_tools(stack, &packages);
    packages.extend(tools.into_iter().map(|package| (TOOLS, package)));
    // Stable: packages with equal order stay in the order of the request.
    packages.compact_sort_by_key(|(order, _)| *order);
    let packages: Vec<PlannedPackage> = packages.into_iter().map(|(_, package)| package).collect();
    let mut rejected: Vec<RejectedCandidate> = passed.iter().map(passed_over).collect();
    rejected.extend(newer(&context, stack));
    InstallPlan {
        schema: SCHEMA,
        target: problem.target.clone(),
        wants: problem.items.iter().map(|item| item.want.clone()).collect(),
        python: dotted(stack.python),
        cuda: stack.torch.as_ref().and_then(Torch::cuda).map(dotted),
        indexes: indexes(stack),
        packages,
        warnings: warnings(problem, stack, left_out),
        rejected,
        locked: false,
    }
}

fn package(problem: &Problem, pick: &SelectedRelease) -> PlannedPackage {
    let item = &problem.items[pick.item];
    PlannedPackage {
        name: item.name().to_owned(),
        version: pick.version.clone(),
        index: pick.index.name.clone(),
        because: item.want.because.clone(),
        origin: pick.origin.clone(),
        marker: item.marker.clone(),
        files: pick.files.clone(),
        source: pick.source.clone(),
    }
}

/// The triton of torch's series, which has to be listed if torch's METADATA does not require it.
fn triton(context: &SelectionContext, stack: &Stack) -> Option<PlannedPackage> {
    let torch = stack.torch.as_ref().filter(|torch| torch.build.is_some())?;
    if context.problem.items.iter().any(|item| item.name() == "triton") {
        return None;
    }
    let wanted: Vec<_> =
        asked(context, &stack.picks).filter(|asked| asked.requires.name == "triton").collect();
    let first = wanted.first()?;
    let releases = super::catalogue::releases("triton", &PublishedReleases::default());
    let release = releases.iter().find(|release| {
        wanted.iter().all(|asked| asked.requires.specifiers.contains(&release.version))
    })?;
    let tags = context.problem.tags(context.python, context.dropped);
    let file = release.files.iter().find(|wheel| wheel.name.fits(&tags)).map(|wheel| &wheel.file);
    // triton's wheels for Arm are on PyPI since 3.5; earlier ones are on PyTorch's index.
    let index = if file.is_some() { pypi() } else { torch.index(context.problem) };
    Some(PlannedPackage {
        name: "triton".to_owned(),
        version: release.text.clone(),
        index: index.name,
        because: first.words(context),
        origin: PackageOrigin::Wheel,
        marker: None,
        files: file.cloned().into_iter().collect(),
        source: first.requires.source.clone(),
    })
}

/// Build requirements that the plan does not have yet.
fn build_tools(stack: &Stack, there: &[(u32, PlannedPackage)]) -> Vec<PlannedPackage> {
    let mut tools: Vec<PlannedPackage> = Vec::new();
    for pick in &stack.picks {
        let PackageOrigin::Build(recipe) = &pick.origin else { continue };
        for name in &recipe.build_requires {
            let known = there.iter().any(|(_, package)| package.name == *name);
            if known || tools.iter().any(|tool| tool.name == *name) {
                continue;
            }
            tools.push(PlannedPackage {
                name: name.clone(),
                version: String::new(),
                index: pypi().name,
                because: format!("build tool of {}", recipe.requirement),
                origin: PackageOrigin::Wheel,
                marker: None,
                files: Vec::new(),
                source: recipe.source.clone(),
            });
        }
    }
    tools
}

/// PyPI first, as the default; then each other index once, for the packages that name it.
fn indexes(stack: &Stack) -> Vec<PlanIndex> {
    let mut indexes = vec![pypi()];
    for pick in &stack.picks {
        if !indexes.iter().any(|index| index.name == pick.index.name) {
            indexes.push(pick.index.clone());
        }
    }
    indexes
}

pub(super) fn passed_over((torch, reason): &RejectedTorch) -> RejectedCandidate {
    RejectedCandidate {
        candidate: torch.label(),
        reason: reason.text.clone(),
        source: reason.source.clone(),
    }
}

/// Releases newer than the chosen ones that the requested versions would have allowed.
fn newer(context: &SelectionContext, stack: &Stack) -> Vec<RejectedCandidate> {
    let mut rejected = Vec::new();
    for pick in &stack.picks {
        let item = &context.problem.items[pick.item];
        let Some(chosen) = pick.release.filter(|_| context.problem.torch != Some(pick.item)) else {
            continue;
        };
        let passed = item.releases.iter().filter(|release| {
            release.version > chosen.version && item.specifiers.contains(&release.version)
        });
        for release in passed {
            let reason = context.why_not(pick.item, release, &stack.picks);
            rejected.push(RejectedCandidate {
                candidate: format!("{} {}", item.name(), release.text),
                reason: reason.text,
                source: reason.source,
            });
        }
    }
    rejected
}

/// The replacement of a package in the tables, if there is one.
pub(super) fn fallback(name: &str) -> Option<(&'static str, &'static str, String)> {
    let row = packages::package(name)?;
    Some((row.lost.as_deref()?, row.instead.as_deref()?, row.source.to_string()))
}
