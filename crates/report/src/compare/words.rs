//! Text about a comparison, shared by all documents.

use crate::format;
use facts::{Change, Comparison, ParityChange, SpeedChange, Status};

/// How many checks and timings are unchanged, and how many changed.
pub(crate) fn summary(comparison: &Comparison) -> String {
    let of =
        |wanted: Change| comparison.speed.iter().filter(|change| change.change == wanted).count();
    let mut parts = Vec::new();
    let checks = comparison.parity_same + comparison.parity.len();
    if checks > 0 {
        parts.push(format!(
            "{}: {} with the same outcome, {} with another",
            format::count(checks, "check"),
            comparison.parity_same,
            comparison.parity.len()
        ));
    }
    if !comparison.speed.is_empty() {
        let counts = [
            Change::Slower,
            Change::Faster,
            Change::Same,
            Change::Unclear,
            Change::Gone,
            Change::New,
        ];
        let counts: Vec<String> = counts
            .into_iter()
            .map(|wanted| (of(wanted), wanted))
            .filter(|(number, _)| *number > 0)
            .map(|(number, wanted)| format!("{number} {}", wanted.as_str()))
            .collect();
        parts.push(format!(
            "{}: {} (a change is over {} and clear of the samples' spread)",
            format::count(comparison.speed.len(), "timing"),
            counts.join(", "),
            format::percent(comparison.tolerance_pct)
        ));
    }
    if parts.is_empty() {
        return "The runs have neither a check nor a timing to compare.".to_owned();
    }
    parts.join("; ")
}

/// A line for each change of an outcome. More than three cases of one kernel with the same change and reason share a line.
pub(crate) fn parity_lines<'a>(
    changes: impl IntoIterator<Item = &'a ParityChange>,
) -> Vec<(&'a ParityChange, String)> {
    let key = |change: &'a ParityChange| {
        let kernel = (&change.op, &change.dtype, &change.variant, change.backend);
        (kernel, change.base, change.run, &change.reason)
    };
    let mut groups: Vec<Vec<&ParityChange>> = Vec::new();
    for change in changes {
        let same = |group: &&mut Vec<&'a ParityChange>| {
            group.first().is_some_and(|first| key(first) == key(change))
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(change),
            None => groups.push(vec![change]),
        }
    }
    let mut lines = Vec::new();
    for group in groups {
        match group.as_slice() {
            [first, _, _, _, ..] => {
                let cases = format!("{} cases", group.len());
                lines.push((*first, parity_words(first, &cases, ["were", "are"])));
            }
            few => {
                lines.extend(few.iter().map(|&it| (it, parity_words(it, &it.case, ["was", "is"]))))
            }
        }
    }
    lines
}

/// `kda fla/x bf16 chunk on cuda was PASS and is SKIP: the reason`.
fn parity_words(change: &ParityChange, cases: &str, [was, is]: [&str; 2]) -> String {
    let word = |status: Option<Status>| status.map_or("not run", Status::as_str);
    let reason =
        if change.reason.is_empty() { String::new() } else { format!(": {}", change.reason) };
    format!(
        "{} {cases} {} {} on {} {was} {} and {is} {}{reason}",
        change.op,
        change.dtype,
        change.variant,
        change.backend,
        word(change.base),
        word(change.run)
    )
}

/// The variant, and the earlier one if it differs.
pub(crate) fn kernel(change: &SpeedChange) -> String {
    match (&change.base_variant, &change.run_variant) {
        (Some(base), Some(run)) if base != run => format!("{base} -> {run}"),
        (base, run) => run.as_ref().or(base.as_ref()).cloned().unwrap_or_default(),
    }
}
