//! Every recorded run is cited by a document.

use super::{Check, Problem};
use crate::layout::Layout;
use std::collections::BTreeSet;

pub(super) const CHECK: Check = Check {
    name: "runs",
    promise: "a document outside of a folder of benchmarks/runs cites it",
    hint: "cite the run next to the claim that it supports, or delete it: the history keeps it",
    find,
};

const RUNS: &str = "benchmarks/runs/";

fn find(layout: &Layout) -> Vec<Problem> {
    let runs: BTreeSet<&str> = layout
        .files
        .keys()
        .filter_map(|path| path.strip_prefix(RUNS)?.split_once('/'))
        .map(|(run, _)| run)
        .collect();
    let mut problems = Vec::new();
    for run in runs {
        let folder = format!("{RUNS}{run}");
        let own = format!("{folder}/");
        let cited =
            layout.texts(&[".md"]).any(|(path, text)| !path.starts_with(&own) && cites(text, run));
        if !cited {
            problems.push(Problem::file(&folder, "is cited by no document"));
        }
    }
    problems
}

/// Whether a text has the whole name of a run: `2026-11-21-h200` is not in `2026-11-21-h200-2`.
fn cites(text: &str, run: &str) -> bool {
    text.match_indices(run).any(|(at, _)| {
        let next = text[at + run.len()..].chars().next();
        !next.is_some_and(|next| next.is_alphanumeric() || next == '-')
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check;

    #[test]
    fn finds_runs_that_no_document_cites() {
        let files = [
            ("README.md", "461 tokens/s (`2026-11-22-h200-2`)"),
            ("benchmarks/runs/2026-11-22-h200/README.md", "2026-11-22-h200"),
            ("benchmarks/runs/2026-11-22-h200-2/bench.csv", ""),
        ];
        let problems = ["benchmarks/runs/2026-11-22-h200: is cited by no document"];
        check(&CHECK, &Layout::of(&files), &problems);
    }
}
