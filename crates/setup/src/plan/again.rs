//! A plan that was written down, held against what would be chosen today.

use crate::lock::added_by_lock;
use crate::{Request, Wanted};
use facts::{Fact, Plan, PlanTarget, PlannedPackage, Refusal, Want};

/// What is chosen otherwise today for the same wants, machine, Python and CUDA, each as a sentence; empty where nothing is.
/// What came into the plan when it was locked is uv's choice, and is not looked at. `plan` plans, by the tables or with an
/// index.
///
/// # Errors
/// Those of `plan`; inside, the [`Refusal`] where the wants no longer go together on that machine.
pub fn differences<E>(
    written: &Plan,
    plan: impl Fn(&Request, &PlanTarget) -> Result<Result<Plan, Box<Refusal>>, E>,
) -> Result<Result<Vec<Fact<String>>, Box<Refusal>>, E> {
    let chosen = |name: &str| written.packages.iter().find(|package| package.name == name);
    // An option that was left out then may be left out again.
    let wants = written.wants.iter().filter(|want| chosen(&want.package).is_some());
    let wanted = |want: &Want| Wanted { want: want.clone(), marker: None, optional: false };
    let mut request = Request {
        wants: wants.map(wanted).collect(),
        python: knowledge::minor_of(&written.python),
        cuda: written.cuda.as_deref().and_then(knowledge::minor_of),
        ..Request::default()
    };
    // A plan does not say that wheels of one person were allowed; where nothing else will do, they were.
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
            // uv has given a version to what the tables have none of.
            Some(then) if public(then) == public(now) || now.version.is_empty() => return None,
            Some(then) => format!("{} {} is {} today", now.name, then.version, now.version),
        };
        Some(Fact::new(words, source(now)))
    });
    let gone = written.packages.iter().filter(|then| {
        !added_by_lock(then) && !today.packages.iter().any(|now| now.name == then.name)
    });
    let gone = gone.map(|then| {
        let words = format!("{} {} is no part of it today", then.name, then.version);
        Fact::new(words, source(then))
    });
    Ok(Ok(now.chain(gone).collect()))
}

/// The version without the label of the index's build, which a locked plan may have where an unlocked one has not.
fn public(package: &PlannedPackage) -> &str {
    package.version.split('+').next().unwrap_or_default()
}
