//! Compares a written plan with the one that would be chosen today.

use crate::lock::added_by_lock;
use crate::{PlanRequest, RequestedPackage};
use facts::{Fact, InstallPlan, PlanRefusal, PlanRequirement, PlanTarget, PlannedPackage};

/// Differences of today's choice for the same requirements, machine, Python and CUDA, each as a sentence. Packages
/// added by locking are uv's choice and are not compared. `plan` plans, with the tables or an index.
///
/// # Errors
/// Those of `plan`; the inner error is the [`PlanRefusal`] if the requirements conflict on that machine today.
pub fn differences<E>(
    written: &InstallPlan,
    plan: impl Fn(&PlanRequest, &PlanTarget) -> Result<Result<InstallPlan, Box<PlanRefusal>>, E>,
) -> Result<Result<Vec<Fact<String>>, Box<PlanRefusal>>, E> {
    let chosen = |name: &str| written.packages.iter().find(|package| package.name == name);
    // An optional package that was left out then may be left out again.
    let wants = written.wants.iter().filter(|want| chosen(&want.package).is_some());
    let wanted = |want: &PlanRequirement| RequestedPackage {
        want: want.clone(),
        marker: None,
        optional: false,
    };
    let mut request = PlanRequest {
        wants: wants.map(wanted).collect(),
        python: knowledge::minor_of(&written.python),
        cuda: written.cuda.as_deref().and_then(knowledge::minor_of),
        ..PlanRequest::default()
    };
    // A plan does not record that wheels of one person were allowed; they were, if nothing else fits.
    let mut today = plan(&request, &written.target)?;
    if today.is_err() {
        request.community = true;
        today = plan(&request, &written.target)?.or(today);
    }
    let today = match today {
        Ok(today) => today,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let source = |package: &PlannedPackage| package.source.clone();
    let now = today.packages.iter().filter_map(|now| {
        let then = chosen(&now.name);
        let words = match then {
            None => format!("{} {} is part of it today", now.name, now.version),
            // uv has chosen a version that the tables do not have.
            Some(then) if public(then) == public(now) || now.version.is_empty() => return None,
            Some(then) => format!("{} {} is {} today", now.name, then.version, now.version),
        };
        Some(Fact::new(words, source(now)))
    });
    let gone = written.packages.iter().filter(|then| {
        !added_by_lock(then) && !today.packages.iter().any(|now| now.name == then.name)
    });
    let gone = gone.map(|then| {
        let words = format!("{} {} is not part of it today", then.name, then.version);
        Fact::new(words, source(then))
    });
    Ok(Ok(now.chain(gone).collect()))
}

/// The version without the local label of the index's build, which only a locked plan may have.
fn public(package: &PlannedPackage) -> &str {
    package.version.split('+').next().unwrap_or_default()
}
