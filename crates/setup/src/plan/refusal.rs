//! The smallest set of facts that cannot all hold.

use super::assemble::passed_over;
use super::extension::{published, source_of};
use super::nearest::nearest;
use super::problem::{Dropped, Limit, Problem};
use super::search::{Passed, solve};
use super::torch::driver;
use crate::Request;
use facts::{Fact, Refusal};
use knowledge::dotted;
use knowledge::packages::Needs;
use knowledge::torch_builds::builds;

pub(super) fn refusal(request: &Request, problem: &Problem, passed: &[Passed]) -> Refusal {
    let conflict = conflict(problem);
    Refusal {
        target: problem.target.clone(),
        wants: problem.items.iter().map(|item| item.want.clone()).collect(),
        conflict: conflict.iter().map(|limit| fact(problem, *limit)).collect(),
        nearest: nearest(request, problem.target),
        rejected: passed.iter().map(passed_over).collect(),
    }
}

/// Limits that cannot all hold, of which each one that is dropped leaves a stack. Limits are tried in the order of
/// [`Problem::limits`], so that those a user can change are dropped first and what is left says what is at the bottom.
pub(super) fn conflict(problem: &Problem) -> Vec<Limit> {
    // What is optional stands in nobody's way.
    let optional = problem.optional();
    let mut dropped = Dropped::new();
    let mut kept = Vec::new();
    for limit in problem.limits() {
        dropped.insert(limit);
        if solve(problem, &dropped, &optional).0.is_some() {
            dropped.remove(&limit);
            kept.push(limit);
        }
    }
    // What is wanted reads first, then what stands against it.
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
            "Python {} was asked for",
            problem.python.map_or_else(|| "?".to_owned(), dotted)
        )),
        Limit::Cuda => asked(format!(
            "CUDA {} was asked for",
            problem.cuda.map_or_else(|| "?".to_owned(), dotted)
        )),
        Limit::Trust => {
            asked("wheels that one person built are taken only where that is asked for".to_owned())
        }
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
                (None, _) => format!("how {} is built from source is not known", item.name()),
            };
            let there = published(item, problem);
            Fact::new(format!("{text}; {there}"), source_of(item))
        }
        Limit::Pins(item) => pins(problem, item),
        Limit::Floor(item) => {
            let item = &problem.items[item];
            let row = item.package;
            let oldest = row.and_then(|row| row.oldest_gpu).filter(|_| problem.has_gpu());
            let text = match (oldest, row.and_then(|row| row.needs)) {
                (Some(floor), _) => {
                    format!("{} starts at compute capability {}", item.name(), dotted(floor))
                }
                (None, Some(Needs::Cuda)) => format!("{} needs an NVIDIA GPU", item.name()),
                (None, None) => format!("{} is not for this machine", item.name()),
            };
            Fact::new(text, row.map_or(String::new(), |row| row.source.to_string()))
        }
        Limit::Versions(item) => {
            let item = &problem.items[item];
            let text = match item.want.specifiers.as_str() {
                "" => format!("{} comes in the releases that are known", item.name()),
                _ => format!("{} is asked for", item.requirement()),
            };
            let there = series_for(problem).filter(|_| item.name() == "torch");
            match there {
                Some((there, source)) => Fact::new(format!("{text}; {there}"), source),
                None => Fact::new(text, item.want.because.clone()),
            }
        }
        Limit::Wanted(item) => {
            let item = &problem.items[item];
            Fact::new(format!("{} is wanted", item.name()), item.want.because.clone())
        }
    }
}

/// The torch series with a CUDA build for the machine's processor.
fn series_for(problem: &Problem) -> Option<(String, String)> {
    let arch = problem.arch.filter(|_| problem.has_gpu())?;
    let rows = builds().iter().filter(|build| build.arch == arch);
    let oldest = rows.clone().min_by_key(|build| build.torch.first().copied())?;
    let newest = rows.max_by_key(|build| build.torch.last().copied())?;
    let (first, last) = (oldest.torch.first()?, newest.torch.last()?);
    let text = format!(
        "CUDA builds for {arch} are there for torch {} to {}",
        dotted(*first),
        dotted(*last)
    );
    Some((text, oldest.source.to_string()))
}

fn gpus(problem: &Problem) -> String {
    let all: Vec<String> = problem.target.gpus.iter().map(|gpu| dotted(*gpu)).collect();
    let tegra =
        if problem.target.tegra { " of a Jetson, which runs only its own code" } else { "" };
    format!("the GPU has compute capability {}{tegra}", all.join(", "))
}

/// What the newest release that may be taken asks of others.
fn pins(problem: &Problem, number: usize) -> Fact<String> {
    let item = &problem.items[number];
    let release = item.releases.iter().find(|release| item.specifiers.contains(&release.version));
    let Some(release) = release else {
        return Fact::new(format!("{} asks for other packages", item.name()), source_of(item));
    };
    let platform = problem.platform(problem.pythons(&Dropped::new())[0]);
    let here = release
        .requires
        .iter()
        .filter(|row| row.marker.as_ref().is_none_or(|marker| marker.holds(platform)))
        .filter(|row| !row.specifiers.is_empty());
    let lines: Vec<&str> = here.map(|row| row.line.as_str()).collect();
    Fact::new(
        format!("{} {} asks for {}", item.name(), release.text, lines.join(", ")),
        release.cited.clone().unwrap_or_default(),
    )
}
