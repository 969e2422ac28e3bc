//! Finds a minimal set of conflicting facts.

use super::assemble::passed_over;
use super::catalogue::Release;
use super::extension::{published, source_of};
use super::nearest::nearest;
use super::problem::{IgnoredLimits, Item, Limit, Problem};
use super::search::{RejectedTorch, solve};
use super::torch::driver;
use crate::PlanRequest;
use facts::{Fact, PlanRefusal};
use knowledge::dotted;
use knowledge::packages::Needs;
use knowledge::torch_builds::builds;

pub(super) fn refusal(
    request: &PlanRequest,
    problem: &Problem,
    passed: &[RejectedTorch],
) -> PlanRefusal {
    let first = conflict(problem);
    let facts = |limits: &Vec<Limit>| limits.iter().map(|limit| fact(problem, *limit)).collect();
    PlanRefusal {
        target: problem.target.clone(),
        wants: problem.items.iter().map(|item| item.want.clone()).collect(),
        conflict: facts(&first),
        further: further(problem, &first).iter().map(facts).collect(),
        nearest: nearest(request, problem.target),
        rejected: passed.iter().map(passed_over).collect(),
    }
}

/// A minimal conflict: dropping any one of its limits gives a stack. Limits are tried in the order of
/// [`Problem::limits`], so that those a user can change are dropped first and the fundamental ones remain.
pub(super) fn conflict(problem: &Problem) -> Vec<Limit> {
    conflict_without(problem, IgnoredLimits::new())
}

/// The conflict that remains when the user drops the requests in the first one: the versions of a package, a Python or
/// a CUDA release. None if dropping them gives a stack.
pub(super) fn further(problem: &Problem, first: &[Limit]) -> Vec<Vec<Limit>> {
    let optional = problem.optional();
    let asked = first.iter().filter(|limit| match limit {
        Limit::Versions(item) => !problem.items[*item].want.specifiers.is_empty(),
        limit => matches!(limit, Limit::Python | Limit::Cuda),
    });
    let dropped: IgnoredLimits = asked.copied().collect();
    if dropped.is_empty() || solve(problem, &dropped, &optional).0.is_some() {
        return Vec::new();
    }
    vec![conflict_without(problem, dropped)]
}

fn conflict_without(problem: &Problem, mut dropped: IgnoredLimits) -> Vec<Limit> {
    let optional = problem.optional();
    let mut kept = Vec::new();
    for limit in problem.limits() {
        // A limit that was dropped before is not part of this conflict.
        if !dropped.insert(limit) {
            continue;
        }
        if solve(problem, &dropped, &optional).0.is_some() {
            dropped.remove(&limit);
            kept.push(limit);
        }
    }
    // Requests are listed first, then the facts against them.
    kept.reverse();
    kept
}

/// A limit as a sentence with its source.
pub(super) fn fact(problem: &Problem, limit: Limit) -> Fact<String> {
    let target = problem.target;
    let of_target = |text: String| Fact::new(text, target.source.clone());
    let asked = |text: String| Fact::new(text, "request");
    match limit {
        Limit::Glibc => {
            of_target(format!("the machine has glibc {}", target.glibc.as_deref().unwrap_or("?")))
        }
        Limit::Python => asked(format!(
            "Python {} was requested",
            problem.python.map_or_else(|| "?".to_owned(), dotted)
        )),
        Limit::Cuda => asked(format!(
            "CUDA {} was requested",
            problem.cuda.map_or_else(|| "?".to_owned(), dotted)
        )),
        Limit::Trust => asked("wheels built by one person are used only on request".to_owned()),
        Limit::Driver => of_target(format!(
            "the driver is {}, which runs CUDA {} and older",
            driver(problem),
            problem.reach.map_or(0, |reach| reach.major)
        )),
        Limit::Gpu => of_target(gpus(problem)),
        Limit::Wheel(item) => {
            let item = &problem.items[item];
            let recipe = knowledge::recipes::recipe(item.name());
            let text = match (recipe, item.want.source_build) {
                (Some(_), false) => format!("{} may not be built from source", item.name()),
                (Some(_), true) => format!("no source of {} fits", item.requirement()),
                (None, _) => format!("{} has no known build recipe", item.name()),
            };
            let there = published(item, problem);
            Fact::new(format!("{text}; {there}"), source_of(item))
        }
        Limit::Pins(item) => pins(problem, item),
        Limit::Floor(item) => {
            let item = &problem.items[item];
            let row = item.package;
            let oldest = row.and_then(|row| row.oldest_gpu).filter(|_| problem.has_gpu());
            let text = match (oldest, row.filter(|row| row.needs == Some(Needs::Cuda))) {
                (Some(floor), _) => {
                    format!("{} needs compute capability {} or later", item.name(), dotted(floor))
                }
                (None, Some(row)) => row.needs_gpu(),
                (None, None) => format!("{} does not support this machine", item.name()),
            };
            Fact::new(text, row.map_or(String::new(), |row| row.source.to_string()))
        }
        Limit::Versions(item) => {
            let item = &problem.items[item];
            let text = match item.want.specifiers.as_str() {
                "" => format!("{} exists only in its known releases", item.name()),
                _ => format!("{} is requested", item.requirement()),
            };
            let there = series_for(problem).filter(|_| item.name() == "torch");
            match there.or_else(|| newest(problem, item)) {
                Some((there, source)) => Fact::new(format!("{text}; {there}"), source),
                None => Fact::new(text, item.want.because.clone()),
            }
        }
        Limit::Wanted(item) => {
            let item = &problem.items[item];
            Fact::new(format!("{} is required", item.name()), item.want.because.clone())
        }
    }
}

/// The CUDA libraries of the newest requested release, or else of the newest release.
fn newest(problem: &Problem, item: &Item) -> Option<(String, String)> {
    let meant = item.releases.iter().find(|release| item.specifiers.contains(&release.version));
    let Some(release) = meant else {
        let newest = item.releases.first()?;
        let text = format!("the newest release that is known is {}", newest.text);
        return Some((text, source_of(item)));
    };
    Some((format!("{} {}", release.text, libraries(problem, release)?), source_of(item)))
}

/// `needs CUDA 13 and has code for sm_75 sm_80`.
fn libraries(problem: &Problem, release: &Release) -> Option<String> {
    let mut here = release
        .files
        .iter()
        .filter(|wheel| wheel.name.platforms.iter().any(|tag| tag.ends_with(&problem.target.arch)));
    let code = here.find_map(|wheel| wheel.code.as_ref())?;
    let cuda = code.cuda.map(|cuda| format!("needs CUDA {cuda}"));
    let gpus = (!code.architectures.is_empty()).then(|| format!("has code for {}", code.words()));
    let words: Vec<String> = cuda.into_iter().chain(gpus).collect();
    (!words.is_empty()).then(|| words.join(" and "))
}

/// The torch series with a CUDA build for the machine's processor.
fn series_for(problem: &Problem) -> Option<(String, String)> {
    let arch = problem.arch.filter(|_| problem.has_gpu())?;
    let rows = builds().iter().filter(|build| build.arch == arch);
    let oldest = rows.clone().min_by_key(|build| build.torch.first().copied())?;
    let newest = rows.max_by_key(|build| build.torch.last().copied())?;
    let (first, last) = (oldest.torch.first()?, newest.torch.last()?);
    let text =
        format!("CUDA builds for {arch} exist for torch {} to {}", dotted(*first), dotted(*last));
    Some((text, oldest.source.to_string()))
}

fn gpus(problem: &Problem) -> String {
    let all: Vec<String> = problem.target.gpus.iter().map(|gpu| dotted(*gpu)).collect();
    let tegra =
        if problem.target.tegra { " of a Jetson, which runs only its own code" } else { "" };
    format!("the GPU has compute capability {}{tegra}", all.join(", "))
}

/// The requirements of the newest permitted release.
fn pins(problem: &Problem, number: usize) -> Fact<String> {
    let item = &problem.items[number];
    let release = item.releases.iter().find(|release| item.specifiers.contains(&release.version));
    let Some(release) = release else {
        return Fact::new(format!("{} requires other packages", item.name()), source_of(item));
    };
    let platform = problem.platform(problem.pythons(&IgnoredLimits::new())[0]);
    let here = release
        .requires
        .iter()
        .filter(|row| row.marker.as_ref().is_none_or(|marker| marker.holds(platform)))
        .filter(|row| !row.specifiers.is_empty());
    let lines: Vec<&str> = here.map(|row| row.line.as_str()).collect();
    let libraries =
        libraries(problem, release).map(|words| format!("; it {words}")).unwrap_or_default();
    Fact::new(
        format!("{} {} requires {}{libraries}", item.name(), release.text, lines.join(", ")),
        release.cited.clone().unwrap_or_default(),
    )
}
