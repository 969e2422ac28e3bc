use super::Style;
use super::layout::{Cell, Column, cell, paragraph, plain, render, table, tagged};
use super::side_by_side::side_by_side;
use crate::counts::{
    Counts, ExcludedRows, Group, by_reason, count_columns, groups, left_out, not_passed, ops,
    status,
};
use crate::document::Tone;
use crate::format;
use crate::installed::{Installed, installed, own, sentence};
use facts::{BackendKind, ParityReport, ParityRow, Status};

/// The whole matrix: counts, failures with reasons, omitted rows by reason, then all rows that ran, by op and kernel.
pub fn parity(report: &ParityReport, style: Style) -> String {
    let mut out = head(&report.rows, &report.rows, style);
    let groups = groups(&report.rows);
    for op in ops(&report.rows) {
        let counts = Counts::of(report.rows.iter().filter(|row| row.op == op));
        let words =
            format!("{op}: {}, {}", format::count(counts.total(), "check"), counts.sentence());
        out.push('\n');
        out.push_str(&paragraph(style, &words));
        let of_op: Vec<&ParityRow> = report.rows.iter().filter(|row| row.op == op).collect();
        out.push_str(&side_by_side(&of_op, style));
        let ran = |group: &&Group<'_>| group.rows.iter().any(|row| has_result(row));
        for group in groups.iter().filter(|group| group.op == op).filter(ran) {
            out.push('\n');
            out.push_str(&paragraph(
                style,
                &format!("{op}, {} {}", name(group.variant, group.backend.as_str()), group.dtype),
            ));
            out.push_str(&rows(group, style));
            // One example of the evidence; parity.csv and --json have it for every row.
            if let Some(row) = group.rows.iter().find(|row| !row.evidence.is_empty()) {
                let by = row.peer.as_deref().unwrap_or_default();
                let words = format!("package {by}; {} ran {}", row.case, row.evidence);
                out.push_str(&paragraph(style, &words));
            }
        }
    }
    out
}

/// Whether a row has more than its status and reason, which the summary at the top has.
fn has_result(row: &ParityRow) -> bool {
    row.launches > 0 || row.rel_err.is_some() || row.status == Status::Pass
}

/// The rows of one kernel that ran.
fn rows(group: &Group<'_>, style: Style) -> String {
    let columns = [
        Column::word("status"),
        Column::wrapped("case"),
        Column::number("error"),
        Column::number("allowed"),
        Column::number("max error"),
        Column::number("launches"),
        Column::number("time"),
    ];
    let mut table = table(style, &columns);
    for row in group.rows.iter().filter(|row| has_result(row)) {
        let ran = row.launches > 0 || row.rel_err.is_some();
        table.add_row(vec![
            status_cell(row),
            plain(&row.case),
            plain(format::error_or_dash(row.rel_err)),
            plain(format::error(row.tolerance)),
            plain(format::error_or_dash(row.max_err)),
            plain(row.launches.to_string()),
            plain(if ran { format::duration(row.millis) } else { format::ABSENT.to_owned() }),
        ]);
    }
    render(&table)
}

/// Counts; failures and omitted rows of firstlight's own kernels with reasons; a line per kernel; and a sentence for
/// each installed kernel.
pub fn parity_summary(report: &ParityReport, style: Style) -> String {
    let own = own(&report.rows);
    let mut out = head(&report.rows, &own, style);
    if !own.is_empty() {
        out.push('\n');
        out.push_str(&by_kernel(&own, style));
    }
    let kernels = installed(&report.rows);
    if !kernels.is_empty() {
        out.push('\n');
        out.push_str(&paragraph(style, &sentence(&kernels)));
        out.push_str(&tagged(style, kernels.iter().map(installed_line).collect()));
    }
    out
}

/// `FALLBACK  ffpa.triton: 12 PASS, 8 FALLBACK; none of its kernels ran`.
fn installed_line(kernel: &Installed<'_>) -> (Cell, String) {
    let (tone, word) = kernel.result();
    let counts = count_columns(kernel.counts);
    let counts = counts.iter().filter(|(_, count, _)| count(kernel.counts) > 0);
    let counts: Vec<String> =
        counts.map(|(head, count, _)| format!("{} {head}", count(kernel.counts))).collect();
    let why = kernel.why().map(|(why, _)| format!("; {why}")).unwrap_or_default();
    (cell(tone, word), format!("{}: {}{why}", kernel.name, counts.join(", ")))
}

/// A line for each kernel.
fn by_kernel(rows: &[ParityRow], style: Style) -> String {
    let counts = count_columns(Counts::of(rows));
    let mut columns = vec![Column::word("op"), Column::wrapped("kernel"), Column::word("type")];
    columns.extend(counts.iter().map(|(head, ..)| Column::number(*head)));
    columns.extend([Column::number("worst"), Column::number("allowed")]);
    let mut table = table(style, &columns);
    for group in groups(rows) {
        let mut cells = vec![
            plain(group.op),
            plain(name(group.variant, group.backend.as_str())),
            plain(group.dtype),
        ];
        cells.extend(counts.iter().map(|(_, count, tone)| match count(group.counts) {
            0 => plain(format::ABSENT),
            number => cell(*tone, &number.to_string()),
        }));
        let allowed = group
            .worst
            .map_or_else(|| format::ABSENT.to_owned(), |row| format::error(row.tolerance));
        cells.extend([
            plain(format::error_or_dash(group.worst.and_then(|row| row.rel_err))),
            plain(allowed),
        ]);
        table.add_row(cells);
    }
    render(&table)
}

/// The counts of all rows, and the failures and omitted rows of `listed`.
fn head(all: &[ParityRow], listed: &[ParityRow], style: Style) -> String {
    let counts = Counts::of(all);
    let words =
        format!("parity: {}, {}", format::count(counts.total(), "check"), counts.sentence());
    let mut out = paragraph(style, &words);
    let mut items: Vec<(Cell, String)> = Vec::new();
    for failed in failures(listed) {
        let row = failed.rows[0];
        let kernel = name(&row.variant, row.backend.as_str());
        let what = match failed.rows.len() {
            1 if row.case == "-" => row.op.clone(),
            1 => format!("{} {}, {kernel} {}", row.op, row.case, row.dtype),
            count => format!("{count} checks ({}) of {kernel}", failed.ops()),
        };
        items.push((status_cell(row), format!("{what}: {}", failed.reason)));
    }
    for left_out in [Status::Skip, Status::NotApplicable, Status::NotRun]
        .iter()
        .flat_map(|wanted| left_out(listed, *wanted))
    {
        let checks = format::count(left_out.rows.len(), "check");
        items.push((
            status_cell(left_out.rows[0]),
            format!("{checks} ({}): {}", left_out.ops(), left_out.reason),
        ));
    }
    if !items.is_empty() {
        out.push('\n');
        out.push_str(&tagged(style, items));
    }
    out
}

/// Failed rows; those of one kernel with the same reason are grouped.
fn failures(rows: &[ParityRow]) -> Vec<ExcludedRows<'_>> {
    let failed = not_passed(rows).into_iter().filter(|row| status(row).0 == Tone::Bad);
    let mut kernels: Vec<(&str, BackendKind, Vec<&ParityRow>)> = Vec::new();
    for row in failed {
        let known = kernels
            .iter_mut()
            .find(|(variant, backend, _)| *variant == row.variant && *backend == row.backend);
        match known {
            Some((.., rows)) => rows.push(row),
            None => kernels.push((&row.variant, row.backend, vec![row])),
        }
    }
    kernels.into_iter().flat_map(|(.., rows)| by_reason(rows)).collect()
}

fn status_cell(row: &ParityRow) -> Cell {
    let (tone, word) = status(row);
    cell(tone, word)
}

fn name(variant: &str, backend: &str) -> String {
    if variant.is_empty() { backend.to_owned() } else { format!("{variant} {backend}") }
}
