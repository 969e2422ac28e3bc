//! NSA decoding branch by branch, one row per context length.

use super::fields::write;
use facts::{BranchReport, BranchRow};

const COLUMNS: &[&str] = &[
    "context",
    "keys",
    "backend",
    "variant",
    "total_ms",
    "p95_ms",
    "cmp_ms",
    "sel_ms",
    "win_ms",
    "one_hot_cmp_ms",
    "one_hot_sel_ms",
    "one_hot_win_ms",
    "reads_cmp",
    "reads_sel",
    "reads_win",
    "formula_reads",
];

/// The table as CSV. `cmp_ms`, `sel_ms` and `win_ms` have the time that each branch adds.
pub fn branches_csv(report: &BranchReport) -> String {
    let cells = |row: &BranchRow| {
        let (adds, hot, reads) = (row.adds_ms, row.one_hot_ms, row.reads);
        let names = [
            row.context.to_string(),
            row.keys.to_string(),
            report.backend.to_string(),
            row.variant.clone(),
        ];
        let millis = [
            row.total_ms,
            row.p95_ms,
            adds.compressed,
            adds.selected,
            adds.window,
            hot.compressed,
            hot.selected,
            hot.window,
        ];
        let reads = [reads.compressed, reads.selected, reads.window, row.formula_reads];
        let millis = millis.iter().map(f64::to_string);
        names.into_iter().chain(millis).chain(reads.iter().map(u64::to_string)).collect()
    };
    write(COLUMNS, report.rows.iter().map(cells))
}
