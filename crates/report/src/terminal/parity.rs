use super::Style;
use super::layout::{cell, paragraph, plain, render, table};
use crate::counts::{Counts, by_reason, groups, not_passed, ops, reason, status};
use crate::document::Tone;
use crate::format;
use comfy_table::Cell;
use facts::{ParityReport, ParityRow, Status};

/// The whole matrix: counts, what failed with its reason, what was left out by reason, then every row by op.
pub fn parity(report: &ParityReport, style: Style) -> String {
    let mut out = head(report, style);
    for op in ops(&report.rows) {
        let rows = || report.rows.iter().filter(|row| row.op == op);
        let counts = Counts::of(rows());
        out.push('\n');
        out.push_str(&paragraph(
            style,
            &format!("{op}: {}, {}", format::count(counts.total(), "check"), counts.sentence()),
        ));
        let mut table = table(
            style,
            &["status", "case", "kernel", "type", ">error", ">allowed", ">launches", ">time"],
        );
        for row in rows() {
            let ran = row.launches > 0 || row.rel_err.is_some();
            table.add_row(vec![
                status_cell(row),
                plain(&row.case),
                plain(kernel(row)),
                plain(&row.dtype),
                plain(format::error_or_dash(row.rel_err)),
                plain(format::error(row.tolerance)),
                plain(row.launches.to_string()),
                plain(if ran { format::duration(row.millis) } else { format::ABSENT.to_owned() }),
            ]);
        }
        out.push_str(&render(&table));
    }
    out
}

/// Counts, what failed with its reason, what was left out by reason, then one line for each kernel.
pub fn parity_summary(report: &ParityReport, style: Style) -> String {
    let mut out = head(report, style);
    if report.rows.is_empty() {
        return out;
    }
    out.push('\n');
    let mut table = table(
        style,
        &["op", "kernel", "type", ">PASS", ">FAIL", ">SKIP", ">N/A", ">worst", ">allowed"],
    );
    for group in groups(&report.rows) {
        let count = |number: usize, tone| {
            if number == 0 { plain(format::ABSENT) } else { cell(tone, &number.to_string()) }
        };
        table.add_row(vec![
            plain(group.op),
            plain(name(group.variant, group.backend.as_str())),
            plain(group.dtype),
            count(group.counts.pass, Tone::Good),
            count(group.counts.bad(), Tone::Bad),
            count(group.counts.skip, Tone::Warn),
            count(group.counts.not_applicable, Tone::Plain),
            plain(format::error_or_dash(group.worst.and_then(|row| row.rel_err))),
            plain(
                group
                    .worst
                    .map_or_else(|| format::ABSENT.to_owned(), |row| format::error(row.tolerance)),
            ),
        ]);
    }
    out.push_str(&render(&table));
    out
}

/// The counts, the failures, and what was left out.
fn head(report: &ParityReport, style: Style) -> String {
    let counts = Counts::of(&report.rows);
    let words =
        format!("parity: {}, {}", format::count(counts.total(), "check"), counts.sentence());
    let mut out = paragraph(style, &words);
    let bad: Vec<&ParityRow> =
        not_passed(&report.rows).into_iter().filter(|row| status(row).0 == Tone::Bad).collect();
    if !bad.is_empty() {
        let mut table = table(style, &["status", "op", "case", "kernel", "type", "reason"]);
        for row in bad {
            table.add_row(vec![
                status_cell(row),
                plain(&row.op),
                plain(&row.case),
                plain(kernel(row)),
                plain(&row.dtype),
                plain(reason(row)),
            ]);
        }
        out.push('\n');
        out.push_str(&render(&table));
    }
    let mut table = table(style, &["status", ">checks", "reason"]);
    for wanted in [Status::Skip, Status::NotApplicable] {
        for (reason, rows) in by_reason(report.rows.iter().filter(|row| row.status == wanted)) {
            let Some(first) = rows.first() else { continue };
            table.add_row(vec![status_cell(first), plain(rows.len().to_string()), plain(reason)]);
        }
    }
    if !table.is_empty() {
        out.push('\n');
        out.push_str(&render(&table));
    }
    out
}

fn status_cell(row: &ParityRow) -> Cell {
    let (tone, word) = status(row);
    cell(tone, word)
}

fn kernel(row: &ParityRow) -> String {
    name(&row.variant, row.backend.as_str())
}

fn name(variant: &str, backend: &str) -> String {
    if variant.is_empty() { backend.to_owned() } else { format!("{variant} {backend}") }
}
