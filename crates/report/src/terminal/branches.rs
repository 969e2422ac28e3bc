use super::Style;
use super::layout::{Column, paragraph, plain, render, table};
use crate::format;
use facts::{BranchReport, BranchRow, PerBranch};

/// The two tables of a decode step: the measured times, then the times by the field report's method.
pub fn branches(report: &BranchReport, style: Style) -> String {
    let BranchReport { backend, settings, rows, not_timed, .. } = report;
    let mut out = paragraph(style, &format!("a step of NSA's decoding on {backend}: {settings}"));
    if !rows.is_empty() {
        out.push_str(&paragraph(
            style,
            "what each branch adds to those before it, which together are the step, and the tokens that it read:",
        ));
        out.push_str(&parts(rows, style));
        out.push_str(&paragraph(
            style,
            "as in the field report: the whole step under a gate that leaves one branch, all of them computed, as a part of the step; and the reads of its formula, which measures nothing:",
        ));
        out.push_str(&legacy(rows, style));
    }
    for why in not_timed {
        out.push_str(&paragraph(style, &format!("not timed: {why}")));
    }
    out
}

fn parts(rows: &[BranchRow], style: Style) -> String {
    let heads = ["S", "total", "p95", "cmp", "sel", "win", "read cmp", "sel", "win", "all"];
    let mut table = table(style, &heads.map(Column::number));
    for row in rows {
        let PerBranch { compressed, selected, window } = row.adds_ms;
        let times = [row.total_ms, row.p95_ms, compressed, selected, window].map(signed);
        let PerBranch { compressed, selected, window } = row.reads;
        let reads =
            [compressed, selected, window, row.total_reads()].map(|reads| reads.to_string());
        let cells = [row.context.to_string()].into_iter().chain(times).chain(reads);
        table.add_row(cells.map(plain).collect::<Vec<_>>());
    }
    render(&table)
}

/// A difference of medians with its sign: on a busy machine it may be negative.
fn signed(millis: f64) -> String {
    let sign = if millis < 0.0 { "-" } else { "" };
    format!("{sign}{}", format::duration(millis.abs()))
}

fn legacy(rows: &[BranchRow], style: Style) -> String {
    let heads = ["S", "total", "cmp%", "sel%", "win%", "reads"];
    let mut table = table(style, &heads.map(Column::number));
    for row in rows {
        let PerBranch { compressed, selected, window } = row.one_hot_ms;
        let share = |millis: f64| format!("{:.0}", 100.0 * millis / row.total_ms);
        table.add_row(
            [row.context.to_string(), format::duration(row.total_ms)]
                .into_iter()
                .chain([compressed, selected, window].map(share))
                .chain([row.formula_reads.to_string()])
                .map(plain)
                .collect::<Vec<_>>(),
        );
    }
    render(&table)
}
