use super::Style;
use super::layout::{Column, cell, fields, paragraph, plain, render, table, tagged};
use crate::compare::{UNCLEAR, kernel, matters, parity_lines, summary, tone};
use crate::document::Tone;
use crate::format;
use facts::{Comparison, GateOutcome, GateReport, SpeedChange, TimingSpread};

/// A comparison of two runs: their surroundings, checks with different outcomes, and all times, worst first.
pub fn comparison(comparison: &Comparison, style: Style) -> String {
    let mut out =
        paragraph(style, &format!("{} compared with {}", comparison.run, comparison.base));
    if !comparison.surroundings.is_empty() {
        let absent = || "not there".to_owned();
        let lines: Vec<(String, String)> = comparison
            .surroundings
            .iter()
            .map(|difference| {
                let (base, run) = (difference.base.clone(), difference.run.clone());
                let words =
                    format!("{} -> {}", base.unwrap_or_else(absent), run.unwrap_or_else(absent));
                (difference.what.clone(), words)
            })
            .collect();
        out.push_str(&fields(style, &lines));
    }
    let mut items = Vec::new();
    for finding in &comparison.findings {
        let (tone, word) = match (finding.appeared, finding.is_error) {
            (true, true) => (Tone::Bad, "new error"),
            (true, false) => (Tone::Warn, "new warning"),
            (false, _) => (Tone::Good, "gone"),
        };
        items.push((cell(tone, word), format!("{} ({})", finding.title, finding.rule)));
    }
    for (change, words) in parity_lines(&comparison.parity) {
        let tone = if matters(change) { Tone::Bad } else { Tone::Plain };
        items.push((cell(tone, "parity"), words));
    }
    if !items.is_empty() {
        out.push('\n');
        out.push_str(&tagged(style, items));
    }
    out.push('\n');
    out.push_str(&paragraph(style, &summary(comparison)));
    if !comparison.speed.is_empty() {
        out.push('\n');
        out.push_str(&speed(&comparison.speed, style));
    }
    for ceiling in &comparison.ceilings {
        let words = format!(
            "ceiling, {}: {} -> {} {} ({})",
            ceiling.what,
            format::significant(ceiling.base, 4),
            format::significant(ceiling.run, 4),
            ceiling.unit,
            format::signed_percent((ceiling.run / ceiling.base - 1.0) * 100.0)
        );
        out.push_str(&paragraph(style, &words));
    }
    for why in &comparison.unclear {
        out.push_str(&paragraph(style, &format!("in doubt: {why}")));
    }
    for note in &comparison.notes {
        out.push_str(&paragraph(style, &format!("note: {note}")));
    }
    out
}

fn speed(changes: &[SpeedChange], style: Style) -> String {
    let columns = [
        Column::word("time"),
        Column::wrapped("op, case"),
        Column::word("type"),
        Column::wrapped("kernel"),
        Column::number("base"),
        Column::number("run"),
        Column::number("change"),
    ];
    let mut table = table(style, &columns);
    for change in changes {
        let time = |spread: Option<TimingSpread>| {
            spread.map_or_else(
                || format::ABSENT.to_owned(),
                |spread| format::duration(spread.median_ms),
            )
        };
        let percent =
            change.change_pct.map_or_else(|| format::ABSENT.to_owned(), format::signed_percent);
        table.add_row(vec![
            cell(tone(change.change), change.change.as_str()),
            plain(format!("{} {}", change.op, change.case)),
            plain(&change.dtype),
            plain(format!("{} {}", kernel(change), change.backend)),
            plain(time(change.base)),
            plain(time(change.run)),
            plain(percent),
        ]);
    }
    render(&table)
}

/// The comparison, then the gate's outcome, which is last so that it is visible.
pub fn gate(report: &GateReport, style: Style) -> String {
    let mut out = comparison(&report.comparison, style);
    out.push('\n');
    let items = report.failures.iter().map(|why| (cell(Tone::Bad, "fails"), why.clone()));
    out.push_str(&tagged(style, items.collect()));
    let words = match report.outcome {
        GateOutcome::Passed => format!("gate: passed, {} held", format::count(report.held, "row")),
        GateOutcome::Unclear => format!("gate: unclear. {UNCLEAR}"),
        GateOutcome::Failed => {
            format!("gate: not passed, {}", format::count(report.failures.len(), "reason"))
        }
    };
    out.push_str(&paragraph(style, &words));
    out
}
