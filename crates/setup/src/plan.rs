//! Choosing a machine's stack from published facts: pure, without network, and with a reason for everything.

mod again;
mod ask;
mod assemble;
mod catalogue;
mod code;
mod extension;
pub(crate) mod fit;
mod nearest;
mod pins;
mod problem;
mod refusal;
mod search;
#[cfg(test)]
mod tests;
mod torch;
mod warnings;

pub use again::differences;
pub use ask::plan_with;

use crate::Request;
use crate::index::Published;
use facts::{Plan, PlanTarget, PlannedPackage, Refusal};
use problem::{Dropped, Problem};
use search::Passed;

/// Why a candidate is not taken, and the published fact behind that.
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

/// The newest torch for which everything that is wanted has a fitting wheel on this machine; source builds only where they
/// are allowed and no wheel of any torch will do. What is optional is left out, with a warning, where nothing fits. A Python that
/// the machine has goes before any that it has not.
///
/// # Errors
/// A [`Refusal`] with the smallest set of facts that cannot all hold, and the plans nearest to what was asked for.
pub fn plan(request: &Request, target: &PlanTarget) -> Result<Plan, Box<Refusal>> {
    found(request, target).ok_or_else(|| refused(request, target))
}

/// The plan, where there is one.
fn found(request: &Request, target: &PlanTarget) -> Option<Plan> {
    let here = Problem::of_here(request, target);
    here.and_then(|problem| solved(&problem).ok())
        .or_else(|| solved(&Problem::of(request, target)).ok())
}

/// Why there is none.
fn refused(request: &Request, target: &PlanTarget) -> Box<Refusal> {
    let problem = Problem::of(request, target);
    let passed = solved(&problem).err().unwrap_or_default();
    Box::new(refusal::refusal(request, &problem, &passed))
}

/// The plan, or every torch that was tried.
fn solved<'p>(problem: &'p Problem<'p>) -> Result<Plan, Vec<Passed<'p>>> {
    let left_out = left_out(problem);
    let (stack, passed) = search::solve(problem, &Dropped::new(), &left_out);
    match stack {
        Some(stack) => Ok(assemble::plan(problem, &stack, &passed, &left_out)),
        None => Err(passed),
    }
}

/// The packages of a plan of which neither a table nor an index is known to have a release.
pub fn unlisted(plan: &Plan) -> Vec<PlannedPackage> {
    let unknown = |package: &&PlannedPackage| {
        package.version.is_empty()
            && catalogue::releases(&package.name, &Published::default()).is_empty()
    };
    plan.packages.iter().filter(unknown).cloned().collect()
}

/// The optional items without which there is a stack: first each one that nothing can be found for, then, where those
/// that are left do not go together, the last of them.
fn left_out(problem: &Problem) -> Vec<usize> {
    let optional = problem.optional();
    let nothing = Dropped::new();
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
