//! Chooses a machine's stack from published facts: without network access, and with a reason for everything.

mod ask;
mod assemble;
mod catalogue;
mod code;
mod extension;
mod nearest;
mod pins;
mod problem;
mod recheck;
mod refusal;
mod search;
#[cfg(test)]
mod tests;
mod torch;
mod warnings;

pub use ask::plan_with;
pub use recheck::differences;

use crate::PlanRequest;
use crate::index::PublishedReleases;
use facts::{CompactSort, InstallPlan, PlanRefusal, PlanTarget, PlannedPackage};
use knowledge::Minor;
use knowledge::torch_builds::builds;
use problem::{IgnoredLimits, Problem};
use search::RejectedTorch;

/// Why a candidate is rejected, and the published fact.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reason {
    text: String,
    source: String,
}

impl Reason {
    fn new(text: impl Into<String>, source: impl Into<String>) -> Self {
        Self { text: text.into(), source: source.into() }
    }
}

/// Chooses the newest torch for which every requirement has a fitting wheel on this machine; source builds are used
/// only if they are allowed and no wheel of any torch fits. Optional packages are left out, with a warning, if nothing
/// fits. An installed Python is preferred to any other.
///
/// # Errors
/// A [`PlanRefusal`] with a minimal set of conflicting facts, and the plans nearest to the request.
pub fn plan(request: &PlanRequest, target: &PlanTarget) -> Result<InstallPlan, Box<PlanRefusal>> {
    found(request, target).ok_or_else(|| refused(request, target))
}

/// The plan, if there is one.
fn found(request: &PlanRequest, target: &PlanTarget) -> Option<InstallPlan> {
    let here = Problem::of_here(request, target);
    here.and_then(|problem| solved(&problem).ok())
        .or_else(|| solved(&Problem::of(request, target)).ok())
}

/// Why there is none.
fn refused(request: &PlanRequest, target: &PlanTarget) -> Box<PlanRefusal> {
    let problem = Problem::of(request, target);
    let passed = solved(&problem).err().unwrap_or_default();
    Box::new(refusal::refusal(request, &problem, &passed))
}

/// The plan, or every torch that was tried.
fn solved<'p>(problem: &'p Problem<'p>) -> Result<InstallPlan, Vec<RejectedTorch<'p>>> {
    let left_out = left_out(problem);
    let (stack, passed) = search::solve(problem, &IgnoredLimits::new(), &left_out);
    match stack {
        Some(stack) => Ok(assemble::plan(problem, &stack, &passed, &left_out)),
        None => Err(passed),
    }
}

/// The packages of a plan without a known release in the tables or an index.
pub fn unlisted(plan: &InstallPlan) -> Vec<PlannedPackage> {
    let unknown = |package: &&PlannedPackage| {
        package.version.is_empty()
            && catalogue::releases(&package.name, &PublishedReleases::default()).is_empty()
    };
    plan.packages.iter().filter(unknown).cloned().collect()
}

/// Names of the packages that the tables know, for suggestions.
pub fn known_packages() -> Vec<&'static str> {
    let with_rows = knowledge::packages::packages().iter().map(|row| row.name.as_str());
    let with_wheels = knowledge::wheels::wheels().iter().map(|row| row.package.as_str());
    let mut names: Vec<&str> = ["torch"].into_iter().chain(with_rows).chain(with_wheels).collect();
    names.compact_sort();
    names.dedup();
    names
}

/// The newest CUDA release with which a plan takes torch from PyPI, for a machine that does not reach PyTorch's
/// indexes; `None` if no build of PyPI fits, or a CUDA release was requested.
pub fn cuda_of_torch_on_pypi(request: &PlanRequest, target: &PlanTarget) -> Option<Minor> {
    let offered = builds().iter().filter(|build| build.offered).map(|build| build.cuda);
    let mut releases: Vec<Minor> = offered.filter(|_| request.cuda.is_none()).collect();
    releases.compact_sort();
    releases.dedup();
    releases.into_iter().rev().find(|cuda| {
        let changed = PlanRequest { cuda: Some(*cuda), ..request.clone() };
        let Some(plan) = found(&changed, target) else { return false };
        plan.packages.iter().any(|package| package.name == "torch" && package.index == "pypi")
    })
}

/// The optional items to leave out for a stack to exist: first each one without a fitting release, then, if the others
/// conflict, the last of them.
fn left_out(problem: &Problem) -> Vec<usize> {
    let optional = problem.optional();
    let nothing = IgnoredLimits::new();
    let solvable = |left: &[usize]| search::solve(problem, &nothing, left).0.is_some();
    if optional.is_empty() || solvable(&[]) {
        return Vec::new();
    }
    let alone = |one: usize| {
        let others: Vec<usize> = optional.iter().copied().filter(|other| *other != one).collect();
        solvable(&others)
    };
    let mut left: Vec<usize> = optional.iter().copied().filter(|one| !alone(*one)).collect();
    for last in optional.iter().rev() {
        if solvable(&left) {
            break;
        }
        if !left.contains(last) {
            left.push(*last);
        }
    }
    left
}
