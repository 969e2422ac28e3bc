//! The search: newest torch first, every item by a wheel, and only then with as few source builds as will do.

use super::Reason;
use super::extension::{Pick, Place};
use super::pins::consistent;
use super::problem::{Dropped, Limit, Problem};
use super::torch::{Torch, candidates, fits};
use knowledge::Minor;

/// One consistent choice.
#[derive(Debug, Clone)]
pub(super) struct Stack<'p> {
    pub(super) torch: Option<Torch<'p>>,
    pub(super) python: Minor,
    /// In the order of installing.
    pub(super) picks: Vec<Pick<'p>>,
}

/// A torch that was passed over, and why.
pub(super) type Passed<'p> = (Torch<'p>, Reason);

/// The best stack, and what was passed over on the way to it; `None` with everything that was tried.
pub(super) fn solve<'p>(
    problem: &'p Problem<'p>,
    dropped: &Dropped,
    left_out: &[usize],
) -> (Option<Stack<'p>>, Vec<Passed<'p>>) {
    let wanted: Vec<usize> = (0..problem.items.len())
        .filter(|item| !left_out.contains(item) && !dropped.contains(&Limit::Wanted(*item)))
        .collect();
    // torch stays as long as something needs it.
    let needs_torch = wanted.iter().any(|item| problem.items[*item].package.is_some());
    let Some(torch) = problem.torch.filter(|_| needs_torch) else {
        return (without_torch(problem, &wanted, dropped), Vec::new());
    };
    let mut order = wanted;
    if !order.contains(&torch) {
        order.insert(0, torch);
    }
    let mut passed = Vec::new();
    for builds in 0..=order.len() {
        passed.clear();
        for candidate in candidates(problem) {
            match with_torch(problem, &candidate, &order, builds, dropped) {
                Ok(stack) => return (Some(stack), passed),
                Err(reason) => passed.push((candidate, reason)),
            }
        }
    }
    (None, passed)
}

fn with_torch<'p>(
    problem: &'p Problem<'p>,
    torch: &Torch<'p>,
    order: &[usize],
    builds: usize,
    dropped: &Dropped,
) -> Result<Stack<'p>, Reason> {
    fits(problem, torch, dropped)?;
    let mut first = None;
    for python in problem.pythons(dropped) {
        if !(torch.series.python.0..=torch.series.python.1).contains(&python) {
            let (oldest, newest) = torch.series.python;
            let text = format!(
                "its wheels are for Python {} to {}, not {}",
                knowledge::dotted(oldest),
                knowledge::dotted(newest),
                knowledge::dotted(python)
            );
            first.get_or_insert(Reason::new(text, torch.series.source.to_string()));
            continue;
        }
        let place = Place { problem, torch: Some(torch), python, dropped };
        match complete(&place, order, builds, &mut Vec::new()) {
            Ok(picks) => return Ok(Stack { torch: Some(*torch), python, picks }),
            Err(reason) => {
                first.get_or_insert(reason);
            }
        }
    }
    Err(first.unwrap_or_else(|| Reason::new("no Python is left", "request")))
}

fn without_torch<'p>(
    problem: &'p Problem<'p>,
    wanted: &[usize],
    dropped: &Dropped,
) -> Option<Stack<'p>> {
    let python = *problem.pythons(dropped).first()?;
    let place = Place { problem, torch: None, python, dropped };
    let picks = complete(&place, wanted, 0, &mut Vec::new()).ok()?;
    Some(Stack { torch: None, python, picks })
}

/// Chooses a release for each item that is left, going back where two do not go together.
fn complete<'p>(
    place: &Place<'_, 'p>,
    rest: &[usize],
    builds: usize,
    picks: &mut Vec<Pick<'p>>,
) -> Result<Vec<Pick<'p>>, Reason> {
    let Some((item, rest)) = rest.split_first() else { return Ok(picks.clone()) };
    let mut reason = None;
    for pick in options(place, *item)? {
        let left = match (pick.is_build(), builds) {
            (true, 0) if !quiet(place, *item) => {
                reason.get_or_insert_with(|| place.no_wheel(*item));
                continue;
            }
            (true, left) if !quiet(place, *item) => left - 1,
            (_, left) => left,
        };
        picks.push(pick);
        let tried = consistent(place, picks).and_then(|()| complete(place, rest, left, picks));
        picks.pop();
        match tried {
            Ok(done) => return Ok(done),
            // The newest release of a package speaks for it: what stands in its way is what a user wants to know.
            Err(why) => reason = reason.or(Some(why)),
        }
    }
    Err(reason.unwrap_or_else(|| place.no_wheel(*item)))
}

/// Whether installing an item from source compiles nothing, so that it counts as a wheel.
fn quiet(place: &Place, item: usize) -> bool {
    place.problem.items[item].package.is_some_and(|row| !row.compiles)
}

fn options<'p>(place: &Place<'_, 'p>, item: usize) -> Result<Vec<Pick<'p>>, Reason> {
    let mut options = place.options(item)?;
    // The candidate is one release of torch, which is not chosen again here.
    if place.problem.torch == Some(item) {
        let torch = place.torch.map(|torch| &torch.release.version);
        options.retain(|pick| pick.release.map(|release| &release.version) == torch);
    }
    Ok(options)
}
