//! The verdict, by evidence: every word of it follows from a count.

use super::{findings, installed, pending};
use crate::counts::{Counts, cell, count_columns, largest_error, not_passed, ops, status};
use crate::document::{Block, Prose, Table, Tile, Tone};
use crate::format;
use crate::installed::{own, sentence};
use crate::run::{BENCH_FILE, FACTS_FILE, MANIFEST_FILE, PARITY_FILE, Run};
use crate::verdict::{Verdict, coverage, scope};
use crate::{conditions, shares};
use facts::{BenchReport, GpuCoverage, ParityReport, ParityRow, Severity};

/// The verdict, the devices whose kernels it covers, and the counts that decide it.
pub(crate) fn verdict(run: &Run<'_>) -> (Tone, Prose) {
    let verdict = Verdict::of(run);
    let words = Prose::new().chip(verdict.tone(), verdict.as_str().to_uppercase()).text(format!(
        " {} {}",
        scope(run),
        why(run, verdict)
    ));
    (verdict.tone(), words)
}

pub(super) fn build(run: &Run<'_>) -> Vec<Block> {
    let mut blocks = vec![Block::Tiles(tiles(run))];
    blocks.push(Block::Paragraph(checks(run.parity)));
    let kernels = installed::of_run(run);
    if !kernels.is_empty() {
        let words = Prose::new()
            .text(format!("{} (", sentence(&kernels)))
            .anchor("each by its evidence", "installed")
            .text(").");
        blocks.push(Block::Paragraph(words));
    }
    blocks.push(Block::Paragraph(speed(run.bench)));
    blocks.push(Block::Paragraph(
        Prose::new()
            .text(format!("{} (", findings::sentence(run.doctor)))
            .file(FACTS_FILE)
            .text(")."),
    ));
    let own = own(run.parity.map_or(&[], |parity| &parity.rows));
    if !own.is_empty() {
        blocks.push(Block::Table(by_op(&own, run.bench)));
    }
    blocks.push(Block::Heading { id: "next".to_owned(), words: Prose::from("What to do next") });
    let next = next(run);
    blocks.push(if next.is_empty() {
        Block::Paragraph(Prose::from("No step follows from this run."))
    } else {
        Block::List(next)
    });
    blocks
}

/// The counts that decide the verdict.
pub(crate) fn why(run: &Run<'_>, verdict: Verdict) -> String {
    let counts = Counts::of(run.parity.iter().flat_map(|parity| &parity.rows));
    let found = |severity| {
        run.doctor.findings.iter().filter(|finding| finding.severity == severity).count()
    };
    let checks = || format!("{} of {} passed", counts.pass, format::count(counts.total(), "check"));
    match verdict {
        Verdict::Incomplete => "The run did not reach its end; what follows covers only what is on record.".to_owned(),
        Verdict::Failing => {
            let mut parts = Vec::new();
            if found(Severity::Error) > 0 {
                parts.push(format::count(found(Severity::Error), "finding") + " must be fixed");
            }
            if counts.fail > 0 {
                parts.push(format!("{} of {} failed", counts.fail, format::count(counts.total(), "check")));
            }
            if counts.fallback > 0 {
                parts.push(format::count(counts.fallback, "check") + " fell back to other kernels");
            }
            if counts.unproven > 0 {
                parts.push(format::count(counts.unproven, "pass") + " without evidence");
            }
            if counts.bad() > 0 && Counts::of(&own(run.parity.map_or(&[], |parity| &parity.rows))).bad() == 0 {
                parts.push("every one of these checks is of an installed kernel".to_owned());
            }
            parts.join("; ") + "."
        }
        Verdict::NotVerified if run.parity.is_none() => {
            "No kernel was compared with the float64 reference in this run, so their results are not known.".to_owned()
        }
        Verdict::NotVerified => format!("{}: no kernel is shown to be right.", checks()),
        Verdict::Partial => {
            let warnings = found(Severity::Warning);
            let left = pending::pending(run).len();
            format!("{}, none failed; {} and {} stand open.", checks(), format::count(warnings, "warning"), format::count(left, "pending entry"))
        }
        Verdict::GpuNotVerified | Verdict::ProcessorOnly | Verdict::Verified => {
            format!("{}, none failed.", checks())
        }
    }
}

fn tiles(run: &Run<'_>) -> Vec<Tile> {
    let mut tiles = Vec::new();
    let mut tile = |value: String, label: &str, file: &str, tone| {
        tiles.push(Tile { value, label: label.to_owned(), source: Prose::new().file(file), tone });
    };
    if let Some(parity) = run.parity {
        let counts = Counts::of(&parity.rows);
        let tone = if counts.pass == 0 { Tone::Plain } else { Tone::Good };
        tile(
            counts.pass.to_string(),
            &format!("of {} passed", format::count(counts.total(), "check")),
            PARITY_FILE,
            tone,
        );
        let tone = if counts.bad() == 0 { Tone::Plain } else { Tone::Bad };
        tile(counts.bad().to_string(), "failed or without evidence", PARITY_FILE, tone);
        let tone = if counts.skip == 0 { Tone::Plain } else { Tone::Warn };
        tile(
            counts.skip.to_string(),
            &format!("skipped; {} not applicable", counts.not_applicable),
            PARITY_FILE,
            tone,
        );
        let kernels = installed::of_run(run);
        if !kernels.is_empty() {
            let ready = kernels.iter().filter(|kernel| kernel.is_ready()).count();
            let tone = if ready == 0 { Tone::Plain } else { Tone::Good };
            let label = format!("of {} ready", format::count(kernels.len(), "installed kernel"));
            tile(ready.to_string(), &label, PARITY_FILE, tone);
        }
    }
    let found = |severity| {
        run.doctor.findings.iter().filter(|finding| finding.severity == severity).count()
    };
    let (errors, warnings) = (found(Severity::Error), found(Severity::Warning));
    let tone = match (errors, warnings) {
        (0, 0) => Tone::Plain,
        (0, _) => Tone::Warn,
        _ => Tone::Bad,
    };
    tile(
        errors.to_string(),
        &format!(
            "{}; {}",
            format::plural(errors, "error finding"),
            format::count(warnings, "warning")
        ),
        FACTS_FILE,
        tone,
    );
    if let Some(bench) = run.bench {
        let doubtful = !conditions::all(bench).is_empty() && !bench.rows.is_empty();
        let doubt = if doubtful { ", in doubt" } else { "" };
        tile(
            bench.rows.len().to_string(),
            &format!("{} timed{doubt}", format::plural(bench.rows.len(), "kernel")),
            BENCH_FILE,
            if doubtful { Tone::Warn } else { Tone::Plain },
        );
    }
    if !run.manifest.stages.is_empty() {
        let total = run.manifest.stages.iter().map(|stage| stage.millis).sum();
        let label = format!("in {}", format::count(run.manifest.stages.len(), "stage"));
        tile(format::duration(total), &label, MANIFEST_FILE, Tone::Plain);
    }
    tiles
}

fn checks(parity: Option<&ParityReport>) -> Prose {
    match parity {
        None => Prose::from("No kernel was verified in this run."),
        Some(parity) => {
            let counts = Counts::of(&parity.rows);
            let words =
                format!("Of {}, {} (", format::count(counts.total(), "check"), counts.sentence());
            Prose::new()
                .text(words)
                .file(PARITY_FILE)
                .text("). A skip or a fallback is never counted as a pass.")
        }
    }
}

fn speed(bench: Option<&BenchReport>) -> Prose {
    let Some(bench) = bench else { return Prose::from("No kernel was timed in this run.") };
    let shares: Vec<f64> = bench.rows.iter().filter_map(|row| shares::sound(bench, row)).collect();
    let were = if bench.rows.len() == 1 { "was" } else { "were" };
    let timed = format!("{} {were} timed", format::count(bench.rows.len(), "kernel run"));
    let words = match (
        shares.iter().copied().reduce(f64::min),
        shares.iter().copied().reduce(f64::max),
    ) {
        (Some(low), Some(high)) if shares.len() > 1 => {
            format!(
                "{timed}, at {} to {} of the ceiling that limits each, measured in the same run (",
                format::percent(low),
                format::percent(high)
            )
        }
        (Some(share), _) => format!(
            "{timed}, at {} of the ceiling measured in the same run (",
            format::percent(share)
        ),
        _ => format!("{timed}; no ceiling stayed the same that they could be compared with ("),
    };
    let prose = Prose::new().text(words).file(BENCH_FILE).text(").");
    match conditions::all(bench).as_slice() {
        [] => prose,
        [first, rest @ ..] => {
            let more = match rest.len() {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            };
            prose
                .text(" These times are ")
                .anchor("in doubt", "bench")
                .text(format!(": {first}{more}."))
        }
    }
}

/// One line for each op: what is proven of firstlight's own kernels and how fast they are.
fn by_op(own: &[ParityRow], bench: Option<&BenchReport>) -> Table {
    let mut caption =
        Prose::new().text("Each op of firstlight's own at a glance, from ").file(PARITY_FILE);
    if bench.is_some() {
        caption = caption.text(" and ").file(BENCH_FILE);
    }
    let columns = count_columns(Counts::of(own));
    let mut heads: Vec<String> = ["Op", "Result"].map(str::to_owned).to_vec();
    heads.extend(columns.iter().map(|(head, ..)| format!(">{head}")));
    heads.extend([">Largest error / allowed", ">Best share of ceiling"].map(str::to_owned));
    let mut table = Table::new(caption.text("."), &heads);
    for op in ops(own) {
        let counts = Counts::of(own.iter().filter(|row| row.op == op));
        let (tone, word) = match counts {
            counts if counts.bad() > 0 => (Tone::Bad, "FAILS"),
            counts if counts.pass == 0 => (Tone::Warn, "NOT VERIFIED"),
            counts if counts.skip > 0 => (Tone::Warn, "PASSES IN PART"),
            _ => (Tone::Good, "PASSES"),
        };
        let worst = largest_error(own.iter().filter(|row| row.op == op));
        let mut cells = vec![Prose::new().strong(op), Prose::new().chip(tone, word)];
        cells.extend(columns.iter().map(|(_, count, tone)| cell(count(counts), *tone)));
        cells.extend([Prose::from(worst), best(bench, op)]);
        table.row(cells);
    }
    table
}

fn best(bench: Option<&BenchReport>, op: &str) -> Prose {
    let rows = bench.iter().flat_map(|bench| &bench.rows);
    let rows = rows.filter(|row| row.op == op && row.peer.is_none());
    let best = rows
        .filter_map(|row| Some((shares::sound(bench?, row)?, row)))
        .max_by(|(a, _), (b, _)| a.total_cmp(b));
    best.map_or_else(
        || Prose::from(format::ABSENT),
        |(share, row)| {
            Prose::from(format::percent(share)).note(format!("{} {}", row.case, row.dtype))
        },
    )
}

/// Steps that follow from the records: remedies first, then failing checks, then what is pending.
fn next(run: &Run<'_>) -> Vec<Prose> {
    let mut steps = Vec::new();
    for (place, finding) in run.doctor.findings.iter().enumerate() {
        if finding.severity != Severity::Info {
            let verb = if finding.fix.is_empty() { "Look at: " } else { "Fix: " };
            steps.push(
                Prose::new().text(verb).anchor(&finding.title, findings::anchor(place, finding)),
            );
        }
    }
    if let Some(parity) = run.parity {
        let own = own(&parity.rows);
        for op in ops(&own) {
            let bad: Vec<_> = not_passed(&own)
                .into_iter()
                .filter(|row| row.op == op && status(row).0 == Tone::Bad)
                .collect();
            if let Some(first) = bad.first() {
                let words = format!(
                    "{} of {op} ({}{})",
                    format::count(bad.len(), "check"),
                    first.case,
                    if bad.len() > 1 { ", ..." } else { "" }
                );
                steps.push(
                    Prose::new()
                        .text("Repair: ")
                        .anchor(words, "parity-not-passed")
                        .text("; until then its results must not be used."),
                );
            }
        }
    }
    for kernel in installed::of_run(run).iter().filter(|kernel| kernel.counts.bad() > 0) {
        let (_, word) = kernel.result();
        let words = format!(" ({word}, {})", format::count(kernel.counts.bad(), "check"));
        steps.push(
            Prose::new()
                .text("Do not rely on ")
                .anchor(kernel.name, "installed")
                .text(words)
                .text("."),
        );
    }
    if coverage(run.doctor, run.parity).gpu == GpuCoverage::NoneVisible {
        steps.push(
            Prose::new()
                .text("If this machine has a GPU: ")
                .code("firstlight doctor")
                .text(" says why this process does not see it."),
        );
    }
    let pending = pending::pending(run);
    if !pending.is_empty() {
        let words = format::count(pending.len(), "pending entry");
        let step = Prose::new().text("Run what was left out: ").anchor(words, "still-pending");
        let commands = pending::commands(&pending);
        let step = commands.iter().enumerate().fold(step, |step, (nth, command)| {
            step.text(if nth == 0 { ": " } else { ", " }).code(*command)
        });
        steps.push(step.text("."));
    }
    if run.bench.is_some_and(|bench| !conditions::all(bench).is_empty()) {
        let step = Prose::new().text("Time again on a quiet machine: ");
        steps.push(step.code(pending::rerun(run)));
    }
    steps
}
