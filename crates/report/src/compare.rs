//! Comparison of two runs, and whether the newer one may pass a gate.
//!
//! A difference of two medians is called a change only if it exceeds the tolerance, which covers variation between runs
//! (clocks, other processes), and if the confidence intervals of the medians do not overlap, which covers variation within
//! a run. A difference that the samples do not resolve is called unclear, as is one where either run shared its machine.

mod document;
mod doubts;
mod gate;
mod parity;
mod speed;
mod spread;
mod surroundings;
mod words;

use crate::format;
use doubts::Doubts;
use facts::{BenchReport, Comparison, DoctorReport, ParityReport, RunManifest, SCHEMA};

pub(crate) use document::{UNCLEAR, tone};
pub use document::{comparison_report, gate_report};
pub use gate::gate;
pub(crate) use parity::matters;
#[cfg(test)]
pub(crate) use spread::tests::row;
pub(crate) use words::{kernel, parity_lines, summary};

/// The default tolerance in percent: a smaller difference of medians is no change.
pub const TOLERANCE_PCT: f64 = 5.0;

/// The records of a run: a whole run folder, or the tables of a `bench -o`.
#[derive(Debug, Clone, Copy)]
pub struct Recorded<'a> {
    /// How the user named it.
    pub name: &'a str,
    /// Its manifest.
    pub manifest: Option<&'a RunManifest>,
    /// Machine, environments and findings.
    pub doctor: Option<&'a DoctorReport>,
    /// The parity matrix.
    pub parity: Option<&'a ParityReport>,
    /// The measurements, with their samples where they were recorded.
    pub bench: Option<&'a BenchReport>,
    /// Files that were edited after the run ended.
    pub edited: &'a [String],
}

/// Compares a run with a base.
pub fn compare(base: &Recorded<'_>, run: &Recorded<'_>, tolerance_pct: f64) -> Comparison {
    let (parity, parity_same, parity_passed) = parity::changes(base.parity, run.parity);
    let doubts = Doubts::of(base, run);
    Comparison {
        schema: SCHEMA,
        base: base.name.to_owned(),
        run: run.name.to_owned(),
        tolerance_pct,
        surroundings: surroundings::differences(base, run),
        findings: surroundings::findings(base.doctor, run.doctor),
        parity,
        parity_same,
        parity_passed,
        ceilings: speed::ceilings(base.bench, run.bench),
        speed: speed::changes(base.bench, run.bench, tolerance_pct, &doubts),
        unclear: doubts.sentences,
        notes: notes(base, run),
    }
}

fn notes(base: &Recorded<'_>, run: &Recorded<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    for recorded in [base, run] {
        let name = recorded.name;
        for (there, what) in [
            (recorded.doctor.is_some(), "its machine and findings are not recorded"),
            (recorded.parity.is_some(), "no kernel was verified apart from those that were timed"),
            (recorded.bench.is_some(), "nothing was timed"),
        ] {
            if !there {
                notes.push(format!("{name}: {what}"));
            }
        }
        let without = recorded
            .bench
            .map_or(0, |bench| bench.rows.iter().filter(|row| row.samples_ms.is_empty()).count());
        if without > 0 {
            let rows = format::count(without, "timing");
            notes.push(format!(
                "{name}: {rows} without samples; the spread is taken from the 95th percentile"
            ));
        }
        for file in recorded.edited {
            notes.push(format!("{name}: {file} is not what it was when the run ended"));
        }
    }
    notes
}
