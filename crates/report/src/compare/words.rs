//! Sentences about a comparison, the same in every document.

use crate::format;
use facts::{Change, Comparison, ParityChange, SpeedChange, Status};

/// How many checks and timings hold, and how many do not.
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

/// `kda fla/x bf16 chunk on cuda was PASS and is SKIP: the reason`.
pub(crate) fn parity_words(change: &ParityChange) -> String {
    let word = |status: Option<Status>| status.map_or("not run", Status::as_str);
    let reason =
        if change.reason.is_empty() { String::new() } else { format!(": {}", change.reason) };
    format!(
        "{} {} {} {} on {} was {} and is {}{reason}",
        change.op,
        change.case,
        change.dtype,
        change.variant,
        change.backend,
        word(change.base),
        word(change.run)
    )
}

/// The variant, and the earlier one where another was chosen.
pub(crate) fn kernel(change: &SpeedChange) -> String {
    match (&change.base_variant, &change.run_variant) {
        (Some(base), Some(run)) if base != run => format!("{base} -> {run}"),
        (base, run) => run.as_ref().or(base.as_ref()).cloned().unwrap_or_default(),
    }
}
