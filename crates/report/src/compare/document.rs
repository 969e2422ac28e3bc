//! A comparison as a separate document.

use super::parity::matters;
use super::words::{kernel, parity_lines, summary};
use crate::document::{Block, Document, Figure, Prose, Section, Table, Tone};
use crate::format;
use crate::plot::{ChangeBar, changes};
use crate::run::Documents;
use facts::{Change, Comparison, GateOutcome, GateReport, SpeedChange, TimingSpread};

/// `compare.md` and `compare.html` of a comparison. The same input gives the same bytes.
pub fn comparison_report(comparison: &Comparison) -> Documents {
    render(comparison, None)
}

/// `gate.md` and `gate.html`: the comparison under the gate's outcome.
pub fn gate_report(report: &GateReport) -> Documents {
    let (tone, words, why) = match report.outcome {
        GateOutcome::Passed => {
            let held = format::count(report.held, "row");
            let words = format!("The gate is passed: {held} held, and nothing got worse.");
            (Tone::Good, words, &[][..])
        }
        GateOutcome::Unclear => (Tone::Warn, UNCLEAR.to_owned(), &report.comparison.unclear[..]),
        GateOutcome::Failed => {
            let reasons = format::count(report.failures.len(), "reason");
            (Tone::Bad, format!("The gate is not passed, for {reasons}."), &report.failures[..])
        }
    };
    let mut blocks = vec![Block::Notice(tone, Prose::from(words))];
    if !why.is_empty() {
        blocks.extend(list(why, ""));
    }
    render(&report.comparison, Some(Section { id: "gate", title: "Gate", blocks }))
}

/// The text of an unclear gate.
pub(crate) const UNCLEAR: &str = "The gate is neither passed nor failed: a run was disturbed, so that its times prove nothing. Take them again on a quiet machine.";

fn render(comparison: &Comparison, outcome: Option<Section>) -> Documents {
    let section = |id, title, blocks| Section { id, title, blocks };
    let mut sections: Vec<Section> = outcome.into_iter().collect();
    sections.extend([
        section(
            "surroundings",
            "Differences of machine, stack and source",
            surroundings(comparison),
        ),
        section("findings", "Findings", findings(comparison)),
        section("parity", "Parity with the f64 reference", parity(comparison)),
        section("speed", "Speed", speed(comparison)),
        section(
            "notes",
            "What could not be compared",
            list(&comparison.notes, "Everything was compared."),
        ),
    ]);
    let document = Document {
        title: format!("{} against {}", comparison.run, comparison.base),
        subtitle: Prose::from(summary(comparison)),
        verdict: None,
        banner: None,
        sections,
    };
    Documents { markdown: crate::markdown::render(&document), html: crate::html::render(&document) }
}

fn list(lines: &[String], none: &str) -> Vec<Block> {
    match lines {
        [] => vec![Block::Paragraph(Prose::from(none))],
        lines => vec![Block::List(lines.iter().map(Prose::from).collect())],
    }
}

fn surroundings(comparison: &Comparison) -> Vec<Block> {
    if comparison.surroundings.is_empty() {
        return list(
            &[],
            "Machine, stack and source are the same in both runs, as far as they are recorded.",
        );
    }
    let mut table = Table::new("Where machine, stack or source differ.", &["What", "Base", "Run"]);
    for difference in &comparison.surroundings {
        let value = |value: &Option<String>| {
            Prose::from(value.clone().unwrap_or_else(|| format::ABSENT.to_owned()))
        };
        table.row(vec![
            Prose::new().strong(&difference.what),
            value(&difference.base),
            value(&difference.run),
        ]);
    }
    vec![Block::Table(table)]
}

fn findings(comparison: &Comparison) -> Vec<Block> {
    let lines: Vec<String> = comparison
        .findings
        .iter()
        .map(|finding| {
            let word = if finding.appeared { "New" } else { "Gone" };
            let kind = if finding.is_error { "error" } else { "warning" };
            format!("{word} {kind}: {} ({})", finding.title, finding.rule)
        })
        .collect();
    list(&lines, "Both runs have the same errors and warnings.")
}

fn parity(comparison: &Comparison) -> Vec<Block> {
    if comparison.parity_same + comparison.parity.len() == 0 {
        return list(&[], "No check is recorded in both runs.");
    }
    let same = format::count(comparison.parity_same, "check");
    let intro = format!(
        "{same} with the same outcome in both runs, {} with another.",
        comparison.parity.len()
    );
    let mut blocks = vec![Block::Paragraph(Prose::from(intro))];
    if !comparison.parity.is_empty() {
        let line = |(change, words): (_, String)| {
            let (tone, word) = if matters(change) {
                (Tone::Bad, "EVIDENCE LOST")
            } else {
                (Tone::Plain, "DIFFERENT")
            };
            Prose::new().chip(tone, word).text(format!(" {words}"))
        };
        let lines = parity_lines(&comparison.parity);
        blocks.push(Block::List(lines.into_iter().map(line).collect()));
    }
    blocks
}

fn speed(comparison: &Comparison) -> Vec<Block> {
    let mut blocks = Vec::new();
    if !comparison.ceilings.is_empty() {
        let heads = ["Ceiling", ">Base", ">Run", ">Change"];
        let mut table = Table::new("Ceilings that both runs measured.", &heads);
        for ceiling in &comparison.ceilings {
            let rate =
                |rate| Prose::from(format!("{} {}", format::significant(rate, 4), ceiling.unit));
            let change = format::signed_percent((ceiling.run / ceiling.base - 1.0) * 100.0);
            table.row(vec![
                Prose::from(&ceiling.what),
                rate(ceiling.base),
                rate(ceiling.run),
                Prose::from(change),
            ]);
        }
        blocks.push(Block::Table(table));
    }
    if comparison.speed.is_empty() {
        blocks.extend(list(&[], "Neither run timed a kernel."));
        return blocks;
    }
    if !comparison.unclear.is_empty() {
        let words = "A run shared its machine, so slower and faster times prove nothing and are called unclear:";
        blocks.push(Block::Notice(Tone::Warn, Prose::from(words)));
        blocks.extend(list(&comparison.unclear, ""));
    }
    blocks.extend(figures(comparison));
    let caption = "Medians with their confidence intervals, worst first.";
    let heads = ["Time", "Op", "Case", "Type", "Kernel", ">Base", ">Run", ">Change"];
    let mut table = Table::new(caption, &heads);
    for change in &comparison.speed {
        table.row(vec![
            Prose::new().chip(tone(change.change), change.change.as_str()),
            Prose::new().strong(&change.op),
            Prose::new().code(&change.case),
            Prose::from(&change.dtype),
            Prose::new().code(format!("{} {}", kernel(change), change.backend)),
            Prose::from(time(change.base)),
            Prose::from(time(change.run)),
            Prose::from(
                change.change_pct.map_or_else(|| format::ABSENT.to_owned(), format::signed_percent),
            ),
        ]);
    }
    blocks.push(Block::Table(table));
    blocks
}

/// `1.03 ms (1.02 ms to 1.05 ms)`.
fn time(spread: Option<TimingSpread>) -> String {
    spread.map_or_else(
        || format::ABSENT.to_owned(),
        |spread| {
            format!(
                "{} ({} to {})",
                format::duration(spread.median_ms),
                format::duration(spread.low_ms),
                format::duration(spread.high_ms)
            )
        },
    )
}

/// One picture per op, of the kernels that both runs timed.
fn figures(comparison: &Comparison) -> Option<Block> {
    let mut ops: Vec<&str> = Vec::new();
    for change in &comparison.speed {
        if !ops.contains(&change.op.as_str()) {
            ops.push(&change.op);
        }
    }
    let figures: Vec<Figure> = ops
        .into_iter()
        .filter_map(|op| {
            let of_op = comparison.speed.iter().filter(|change| change.op == op);
            let bars: Vec<ChangeBar> = of_op.filter_map(bar).collect();
            let id = format!("changes-{op}");
            let title = format!("{op}: time of the run over time of the base");
            let caption = Prose::from(format!(
                "{} that both runs timed.",
                format::count(bars.len(), "kernel")
            ));
            let svg = changes(&id, &title, &bars, comparison.tolerance_pct);
            (!bars.is_empty()).then_some(Figure { id, caption, svg })
        })
        .collect();
    (!figures.is_empty()).then_some(Block::Figures(figures))
}

fn bar(change: &SpeedChange) -> Option<ChangeBar> {
    let (base, run) = (change.base?, change.run?);
    let class = match tone(change.change) {
        Tone::Bad => "bad",
        Tone::Good => "s2",
        Tone::Warn | Tone::Plain => "s1",
    };
    let who = change.peer.as_ref().map_or(String::new(), |_| format!(" {}", kernel(change)));
    Some(ChangeBar {
        label: format!("{} {}{who}", change.case, change.dtype),
        ratio: run.median_ms / base.median_ms,
        range: (run.low_ms / base.high_ms, run.high_ms / base.low_ms),
        class,
    })
}

/// The tone of a change.
pub(crate) fn tone(change: Change) -> Tone {
    match change {
        Change::Slower | Change::Gone => Tone::Bad,
        Change::Unclear => Tone::Warn,
        Change::Faster => Tone::Good,
        Change::New | Change::Same => Tone::Plain,
    }
}
