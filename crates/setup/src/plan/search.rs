//! The search: newest torch first, every item by a wheel, and then with as few source builds as possible.

use super::Reason;
use super::catalogue::Requires;
use super::extension::{SelectedRelease, SelectionContext};
use super::pins::{PinConflict, consistent};
use super::problem::{IgnoredLimits, Limit, Problem};
use super::torch::{Torch, candidates, fits};
use facts::CompactSort;
use knowledge::torch_series::CompatibleSeries;
use knowledge::{Minor, dotted};
use std::collections::BTreeSet;

/// A consistent choice.
#[derive(Debug, Clone)]
pub(super) struct Stack<'p> {
    pub(super) torch: Option<Torch<'p>>,
    pub(super) python: Minor,
    /// In the order of installation.
    pub(super) picks: Vec<SelectedRelease<'p>>,
}

/// A rejected torch, and the reason.
pub(super) type RejectedTorch<'p> = (Torch<'p>, Reason);

/// The best stack and the rejected candidates before it; or no stack, and all candidates.
pub(super) fn solve<'p>(
    problem: &'p Problem<'p>,
    dropped: &IgnoredLimits,
    left_out: &[usize],
) -> (Option<Stack<'p>>, Vec<RejectedTorch<'p>>) {
    let mut order: Vec<usize> = (0..problem.items.len())
        .filter(|item| !left_out.contains(item) && !dropped.contains(&Limit::Wanted(*item)))
        .collect();
    // torch stays as long as an item needs it.
    let needs_torch = order.iter().any(|item| problem.items[*item].needs_torch());
    let Some(torch) = problem.torch.filter(|_| needs_torch) else {
        return (without_torch(problem, &order, dropped), Vec::new());
    };
    if !order.contains(&torch) {
        order.insert(0, torch);
    }
    // torch determines the choices of every other item, so it is chosen first.
    order.compact_sort_by_key(|item| (*item != torch, *item));
    let by_wheels = newest(problem, &order, 0, dropped);
    let most = order.iter().filter(|item| problem.may_build(**item, dropped)).count();
    if by_wheels.0.is_some() || most == 0 {
        return by_wheels;
    }
    let with_all = newest(problem, &order, most, dropped);
    if with_all.0.is_none() {
        return with_all;
    }
    let fewer = (1..most).map(|builds| newest(problem, &order, builds, dropped));
    fewer.into_iter().find(|found| found.0.is_some()).unwrap_or(with_all)
}

/// The newest torch with a consistent stack of at most this many source builds.
fn newest<'p>(
    problem: &'p Problem<'p>,
    order: &[usize],
    builds: usize,
    dropped: &IgnoredLimits,
) -> (Option<Stack<'p>>, Vec<RejectedTorch<'p>>) {
    let mut passed = Vec::new();
    for candidate in candidates(problem) {
        match with_torch(problem, &candidate, order, builds, dropped) {
            Ok(stack) => return (Some(stack), passed),
            Err(reason) => passed.push((candidate, reason)),
        }
    }
    (None, passed)
}

fn with_torch<'p>(
    problem: &'p Problem<'p>,
    torch: &Torch<'p>,
    order: &[usize],
    builds: usize,
    dropped: &IgnoredLimits,
) -> Result<Stack<'p>, Reason> {
    fits(problem, torch, dropped)?;
    let companion = companion_triton(problem, torch);
    let mut first = None;
    for python in problem.pythons(dropped) {
        let (oldest, newest) = torch.series.python;
        if !(oldest..=newest).contains(&python) {
            let range = format!("{} to {}", dotted(oldest), dotted(newest));
            let text = format!("its wheels support Python {range}, not {}", dotted(python));
            first.get_or_insert(Reason::new(text, torch.series.source.to_string()));
            continue;
        }
        let companion = companion.as_ref();
        let context = SelectionContext { problem, torch: Some(torch), python, dropped, companion };
        match complete(&context, order, builds, &mut Vec::new()) {
            Ok(picks) => {
                let mut picks = picks;
                picks.compact_sort_by_key(|pick| pick.item);
                return Ok(Stack { torch: Some(*torch), python, picks });
            }
            Err(clash) => {
                first.get_or_insert(clash.reason);
            }
        }
    }
    Err(first.unwrap_or_else(|| Reason::new("no Python fits", "request")))
}

/// The triton of a torch's series. One that was requested by name may differ, which is reported.
pub(super) fn companion_triton(problem: &Problem, torch: &Torch) -> Option<Requires> {
    let by_name = problem.items.iter().any(|item| item.name() == "triton");
    torch.build.filter(|_| !by_name)?;
    let line = format!("triton{}", CompatibleSeries::Series(torch.series.triton).constraint());
    Requires::parse(&line, &torch.series.source.to_string())
}

fn without_torch<'p>(
    problem: &'p Problem<'p>,
    wanted: &[usize],
    dropped: &IgnoredLimits,
) -> Option<Stack<'p>> {
    let python = *problem.pythons(dropped).first()?;
    let context = SelectionContext { problem, torch: None, python, dropped, companion: None };
    let picks = complete(&context, wanted, 0, &mut Vec::new()).ok()?;
    Some(Stack { torch: None, python, picks })
}

/// Chooses a release for each remaining item. If none is consistent, the search backtracks to the last item that causes
/// the conflict (backjumping).
fn complete<'p>(
    context: &SelectionContext<'_, 'p>,
    rest: &[usize],
    builds: usize,
    picks: &mut Vec<SelectedRelease<'p>>,
) -> Result<Vec<SelectedRelease<'p>>, PinConflict> {
    let Some((&item, rest)) = rest.split_first() else { return Ok(picks.clone()) };
    // The available releases of a package depend only on torch, Python and the machine, which are fixed.
    let given = |reason: Reason| PinConflict { reason, items: BTreeSet::new() };
    let mut reason = None;
    let mut items = BTreeSet::new();
    for pick in options(context, item).map_err(given)? {
        let builds = match (pick.is_build() && context.problem.compiles(item), builds) {
            (false, left) => left,
            (true, 0) => {
                reason.get_or_insert_with(|| context.no_wheel(item));
                // Another earlier choice might have avoided a build.
                items.extend(picks.iter().filter(|pick| pick.is_build()).map(|pick| pick.item));
                continue;
            }
            (true, left) => left - 1,
        };
        picks.push(pick);
        let tried =
            consistent(context, picks).and_then(|()| complete(context, rest, builds, picks));
        let built = picks.pop().is_some_and(|pick| pick.is_build());
        match tried {
            Ok(done) => return Ok(done),
            Err(clash) if !clash.items.contains(&item) && !built => return Err(clash),
            // The newest release represents a package: its conflict is the one to report.
            Err(clash) => {
                reason.get_or_insert(clash.reason);
                items.extend(clash.items);
            }
        }
    }
    items.remove(&item);
    Err(PinConflict { reason: reason.unwrap_or_else(|| context.no_wheel(item)), items })
}

fn options<'p>(
    context: &SelectionContext<'_, 'p>,
    item: usize,
) -> Result<Vec<SelectedRelease<'p>>, Reason> {
    let mut options = context.options(item)?;
    // The candidate is one release of torch, which is not chosen again here.
    if context.problem.torch == Some(item) {
        let torch = context.torch.map(|torch| &torch.release.version);
        options.retain(|pick| pick.release.map(|release| &release.version) == torch);
    }
    Ok(options)
}
