//! The parity matrix: counts by kernel, rows that are not a pass with their reasons, pictures, and every row.

use crate::counts::{self, Counts, cell, count_columns, groups, not_passed, ops, reason, status};
use crate::document::{Block, Figure, Prose, Table, Tone, slug};
use crate::format;
use crate::installed::own;
use crate::plot::{Dot, DotRow, dots};
use crate::run::{PARITY_FILE, Run};
use facts::{ParityRow, Status};

pub(super) fn build(run: &Run<'_>) -> Vec<Block> {
    let Some(parity) = run.parity else { return Vec::new() };
    let rows = &parity.rows;
    let counts = Counts::of(rows);
    let intro = Prose::new()
        .text(format!("{}: {} (", format::count(counts.total(), "check"), counts.sentence()))
        .file(PARITY_FILE)
        .text("). PASS means that launches of the kernel were counted and that its error against the f64 reference is within the limit; SKIP could have run here and did not; N/A cannot exist here.");
    let mut blocks = vec![Block::Paragraph(intro)];
    if rows.is_empty() {
        return blocks;
    }
    // Pictures of passing checks are folded: they add nothing to the counts.
    let (green, others): (Vec<_>, Vec<_>) =
        figures(rows).into_iter().partition(|(_, all_passed)| *all_passed);
    let pictures = |figures: Vec<(Figure, bool)>| {
        Block::Figures(figures.into_iter().map(|(figure, _)| figure).collect())
    };
    if !others.is_empty() {
        blocks.push(pictures(others));
    }
    let own = own(rows);
    if !own.is_empty() {
        blocks.push(Block::Table(by_kernel(&own)));
    }
    if !green.is_empty() {
        let count = format::count(green.len(), "picture");
        blocks.push(Block::Details {
            summary: Prose::from(format!(
                "{count} of ops whose checks are all within their limits"
            )),
            blocks: vec![pictures(green)],
        });
    }
    blocks.push(Block::Heading {
        id: "parity-not-passed".to_owned(),
        words: Prose::from("What is not a pass"),
    });
    blocks.extend(failing(rows));
    blocks.extend(left_out(rows));
    blocks.push(Block::Heading {
        id: "parity-all".to_owned(),
        words: Prose::from("Every check that applies here"),
    });
    blocks.extend(ops(rows).into_iter().map(|op| all(op, rows)));
    blocks
}

fn from_file(words: &str) -> Prose {
    Prose::new().text(format!("{words}, from ")).file(PARITY_FILE).text(".")
}

fn by_kernel(rows: &[ParityRow]) -> Table {
    let columns = count_columns(Counts::of(rows));
    let mut heads: Vec<String> = ["Op", "Kernel", "Backend", "Type"].map(str::to_owned).to_vec();
    heads.extend(columns.iter().map(|(head, ..)| format!(">{head}")));
    heads.extend([">Largest error", ">Allowed", ">Launches"].map(str::to_owned));
    let mut table = Table::new(from_file("Checks by kernel of firstlight's own"), &heads);
    for group in groups(rows) {
        let mut cells = vec![
            Prose::new().strong(group.op),
            kernel(group.variant),
            Prose::from(group.backend.as_str()),
            Prose::from(group.dtype),
        ];
        cells.extend(columns.iter().map(|(_, count, tone)| cell(count(group.counts), *tone)));
        let allowed = group
            .worst
            .map_or_else(|| format::ABSENT.to_owned(), |row| format::error(row.tolerance));
        cells.extend([
            Prose::from(format::error_or_dash(group.worst.and_then(|row| row.rel_err))),
            Prose::from(allowed),
            Prose::from(group.launches.to_string()),
        ]);
        table.row(cells);
    }
    table
}

fn kernel(variant: &str) -> Prose {
    if variant.is_empty() { Prose::from(format::ABSENT) } else { Prose::new().code(variant) }
}

/// One picture for each op with compared rows, and whether all of them passed: a line for each suite and storage type.
fn figures(rows: &[ParityRow]) -> Vec<(Figure, bool)> {
    let mut figures = Vec::new();
    for op in ops(rows) {
        let mut lines: Vec<DotRow> = Vec::new();
        for row in rows.iter().filter(|row| row.op == op) {
            let Some(error) = row.rel_err else { continue };
            let suite = row.case.split_once('/').map_or("cases", |(suite, _)| suite);
            let label = format!("{suite} {}", row.dtype);
            let line = match lines.iter_mut().position(|line| line.label == label) {
                Some(at) => &mut lines[at],
                None => {
                    lines.push(DotRow {
                        label,
                        series: series(&row.dtype),
                        tolerances: Vec::new(),
                        dots: Vec::new(),
                    });
                    let last = lines.len() - 1;
                    &mut lines[last]
                }
            };
            if !line.tolerances.contains(&row.tolerance) {
                line.tolerances.push(row.tolerance);
            }
            line.dots.push(Dot {
                error,
                passed: status(row).0 == Tone::Good,
                name: format!("{} {}", row.case, row.variant),
            });
        }
        if !lines.is_empty() {
            let id = format!("plot-parity-{}", slug(op));
            let compared: usize = lines.iter().map(|line| line.dots.len()).sum();
            let svg = dots(&id, &format!("{op}: error against its limit"), &lines);
            let caption = from_file(&format!(
                "Relative error of {} of {op} against the limit of each",
                format::count(compared, "compared check")
            ));
            let all_passed = lines.iter().flat_map(|line| &line.dots).all(|dot| dot.passed);
            figures.push((
                Figure { id: format!("figure-parity-{}", slug(op)), caption, svg },
                all_passed,
            ));
        }
    }
    figures
}

/// The same storage type has the same colour in every picture.
pub(super) fn series(dtype: &str) -> usize {
    match dtype {
        "f32" => 1,
        "bf16" => 2,
        "f16" => 3,
        "f64" => 4,
        _ => 5,
    }
}

/// Failures and unproven passes, one line each.
fn failing(rows: &[ParityRow]) -> Vec<Block> {
    let bad: Vec<&ParityRow> =
        not_passed(rows).into_iter().filter(|row| status(row).0 == Tone::Bad).collect();
    if bad.is_empty() {
        return vec![Block::Paragraph(Prose::from("No check failed."))];
    }
    let mut table = Table::new(
        from_file(&format!("{} failed or lack evidence", format::count(bad.len(), "check"))),
        &["Status", "Case", "Reason", ">Error of allowed", ">Launches"],
    );
    table.narrow = true;
    for row in bad {
        let (tone, word) = status(row);
        table.row(vec![
            Prose::new().chip(tone, word),
            Prose::new()
                .strong(&row.op)
                .text(" ")
                .code(&row.case)
                .note(format!("{} {} {}", row.dtype, row.variant, row.backend)),
            Prose::from(reason(row)),
            error(row),
            Prose::from(row.launches.to_string()),
        ]);
    }
    vec![Block::Table(table)]
}

/// An error with its limit below it.
fn error(row: &ParityRow) -> Prose {
    Prose::from(format::error_or_dash(row.rel_err))
        .note(format!("of\u{a0}{}", format::error(row.tolerance)))
}

/// Skips and what does not apply, one line for each reason.
fn left_out(rows: &[ParityRow]) -> Vec<Block> {
    let mut table = Table::new(
        from_file("Neither passed nor failed, by reason"),
        &["Status", ">Checks", "Reason", "Ops", "Backend and type", "Cases"],
    );
    for left_out in [Status::Skip, Status::NotApplicable, Status::NotRun]
        .iter()
        .flat_map(|wanted| counts::left_out(rows, *wanted))
    {
        let (tone, word) = status(left_out.rows[0]);
        let places =
            distinct(left_out.rows.iter().map(|row| format!("{} {}", row.backend, row.dtype)));
        let cases = distinct(left_out.rows.iter().map(|row| row.case.clone()));
        let mut shown = Prose::new();
        for (i, case) in cases.iter().take(3).enumerate() {
            shown = if i > 0 { shown.text(", ") } else { shown }.code(case);
        }
        if cases.len() > 3 {
            shown = shown.text(format!(" and {} more", cases.len() - 3));
        }
        table.row(vec![
            Prose::new().chip(tone, word),
            Prose::from(left_out.rows.len().to_string()),
            Prose::from(&left_out.reason),
            Prose::from(left_out.ops()),
            Prose::from(places.join(", ")),
            shown,
        ]);
    }
    if table.rows.is_empty() {
        return vec![Block::Paragraph(Prose::from(
            "No check was skipped, and every check applies here.",
        ))];
    }
    vec![Block::Table(table)]
}

fn distinct(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for word in words {
        if !found.contains(&word) {
            found.push(word);
        }
    }
    found
}

fn all(op: &str, rows: &[ParityRow]) -> Block {
    let of_op = || rows.iter().filter(|row| row.op == op);
    let counts = Counts::of(of_op());
    let mut table = Table::new(
        // A stack of packages that cannot run here makes thousands of rows, which say no more than their few reasons.
        from_file(&format!(
            "Every check of {op}; those that do not apply stand by their reasons above"
        )),
        &["Status", "Case", "Kernel", ">Error of allowed", ">Max error", ">Launches", "Reason"],
    );
    table.narrow = true;
    for row in of_op().filter(|row| !matches!(row.status, Status::NotApplicable | Status::NotRun)) {
        let (tone, word) = status(row);
        table.row(vec![
            Prose::new().chip(tone, word),
            Prose::new().code(&row.case),
            kernel(&row.variant).note(format!("{} {}", row.backend, row.dtype)),
            error(row),
            Prose::from(format::error_or_dash(row.max_err)),
            // A check that did not run took no time worth a number.
            match row.rel_err.is_none() && row.launches == 0 {
                true => Prose::from(row.launches.to_string()),
                false => Prose::from(row.launches.to_string()).note(format::duration(row.millis)),
            },
            Prose::from(reason(row)),
        ]);
    }
    let summary = Prose::new().strong(op).text(format!(
        ": {}, {}",
        format::count(counts.total(), "check"),
        counts.sentence()
    ));
    Block::Details { summary, blocks: vec![Block::Table(table)] }
}
