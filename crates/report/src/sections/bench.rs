//! Ceilings, then the share of them that each verified kernel reaches.

use super::parity::series;
use crate::document::{Block, Figure, Prose, Table, Tone, slug};
use crate::format;
use crate::plot::{Bar, BarGroup, Series, bars, lines};
use crate::run::{BENCH_FILE, CONDITIONS_FILE, Run};
use crate::{conditions, legend, shares};
use facts::CompactSort;
use facts::{BackendKind, BenchReport, BenchRow, Ceilings, Conditions, RaisedCeiling};
use std::collections::BTreeMap;

pub(super) fn build(run: &Run<'_>) -> Vec<Block> {
    let Some(bench) = run.bench else { return Vec::new() };
    let intro = Prose::new()
        .text(format!("{} (", format::count(bench.rows.len(), "timing")))
        .file(BENCH_FILE)
        .text("). Only a kernel that was verified in the same run has a time. Times are those of one call after warm-up; GFLOP/s counts by the op's formula, GB/s counts each input read once and each output written once.");
    let mut blocks = vec![Block::Paragraph(intro)];
    let disturbed = conditions::all(bench);
    if !disturbed.is_empty() {
        let words = "These times are in doubt: the machine was not this run's alone.";
        blocks.push(Block::Notice(Tone::Warn, Prose::from(words)));
        blocks.push(Block::List(disturbed.iter().map(Prose::from).collect()));
    }
    if !bench.rows.is_empty() {
        blocks.push(Block::Figures(figures(bench)));
        blocks.push(Block::Table(timings(bench)));
        let lines: Vec<Prose> = legend::lines(&bench.rows).iter().map(Prose::from).collect();
        if !lines.is_empty() {
            blocks.push(Block::Details {
                summary: Prose::from("Dimension names"),
                blocks: vec![Block::List(lines)],
            });
        }
    }
    for ceilings in &bench.ceilings {
        blocks.push(Block::Table(self::ceilings(ceilings)));
        let raised = ceilings.raised.iter().map(|raised| Prose::from(raised_words(raised)));
        let raised: Vec<Prose> = raised.collect();
        if !raised.is_empty() {
            blocks.push(Block::List(raised));
        }
    }
    blocks.extend(bench.conditions.iter().map(|conditions| Block::Details {
        summary: Prose::from(format!("Conditions while {} was timed", conditions.backend)),
        blocks: vec![Block::Table(surroundings(conditions))],
    }));
    if !bench.not_timed.is_empty() {
        blocks.push(Block::Heading { id: "not-timed".to_owned(), words: Prose::from("Not timed") });
        let item = |why: &String| Prose::new().text(format!("{why} (")).file(BENCH_FILE).text(")");
        blocks.push(Block::List(bench.not_timed.iter().map(item).collect()));
    }
    blocks
}

fn from_file(words: &str) -> Prose {
    Prose::new().text(format!("{words}, from ")).file(BENCH_FILE).text(".")
}

fn ceilings(ceilings: &Ceilings) -> Table {
    let mut table = Table::new(
        from_file(&format!("Ceilings on {}, measured in this run", ceilings.backend)),
        &["Ceiling", ">Rate", "Limits"],
    );
    let mut row = |what: &str, rate: Option<f64>, unit: &str, limits: &str| {
        let rate = rate.map_or_else(
            || "not measured".to_owned(),
            |rate| format!("{} {unit}", format::significant(rate, 4)),
        );
        table.row(vec![Prose::from(what), Prose::from(rate), Prose::from(limits)]);
    };
    row(
        "Memory copy, read plus written",
        Some(ceilings.copy_gbps),
        "GB/s",
        "kernels bound by memory",
    );
    if ceilings.read_gbps.is_some() {
        row("Memory read", ceilings.read_gbps, "GB/s", "kernels that hardly write");
    }
    row("Matrix product, f32", ceilings.gemm_gflops.f32, "GFLOP/s", "kernels bound by arithmetic");
    row(
        "Matrix product, bf16 in, f32 sums",
        ceilings.gemm_gflops.bf16,
        "GFLOP/s",
        "bf16 kernels bound by arithmetic",
    );
    table
}

/// The conditions before and after the run, with both measurements of each ceiling.
fn surroundings(conditions: &Conditions) -> Table {
    let caption = Prose::new()
        .text("Read before the first ceiling was measured and after the last, from ")
        .file(CONDITIONS_FILE)
        .text(".");
    let mut table = Table::new(caption, &["What", ">Before", ">After", "Source"]);
    for row in conditions::rows(conditions) {
        table.row(row.into_iter().map(Prose::from).collect());
    }
    for twice in &conditions.ceilings {
        let unit = twice.ceiling.unit();
        let rate = |rate| Prose::from(format!("{} {unit}", format::significant(rate, 4)));
        table.row(vec![
            Prose::from(format!("Ceiling of the {}", twice.ceiling.words())),
            rate(twice.before),
            rate(twice.after),
            Prose::from("measured in this run"),
        ]);
    }
    table
}

fn timings(bench: &BenchReport) -> Table {
    let caption =
        "Times of one call; each row was timed after its check passed with this relative error";
    // A narrow screen shows only the first columns: the case, its time, and its share of the ceiling.
    let heads = ["Case", ">Median", ">Of ceiling", "Kernel", ">Rate", ">Rel. error", ">Samples"];
    let with_reference = bench.rows.iter().any(|row| row.reference_ms.is_some());
    let heads = heads.into_iter().chain(with_reference.then_some(">f64 reference"));
    let mut table = Table::new(from_file(caption), &heads.collect::<Vec<_>>());
    table.narrow = true;
    for row in &bench.rows {
        let mut cells = vec![
            Prose::new().strong(&row.op).text(" ").code(&row.case).note(&row.dtype),
            median(row),
            match shares::sound(bench, row) {
                Some(share) => Prose::from(unbroken(&format::percent(share)))
                    .note(unbroken(&format!("of {}", shares::name(row)))),
                None => Prose::from(shares::words_in(bench, row)),
            },
            Prose::new().code(format!("{} {}", row.variant, row.backend)).note(shape(&row.shape)),
            Prose::from(unbroken(&format!("{} GFLOP/s", format::significant(row.gflops, 3))))
                .note(unbroken(&format!("{} GB/s", format::significant(row.gbps, 3)))),
            Prose::from(format::error(row.verified_rel_err)),
            samples(row),
        ];
        if with_reference {
            cells.push(Prose::from(in_medians(row.reference_ms, row)));
        }
        table.row(cells);
    }
    table
}

/// A median with the upper percentile, and with the time of dense attention if that was timed.
fn median(row: &BenchRow) -> Prose {
    let median = Prose::from(unbroken(&format::duration(row.median_ms)))
        .note(unbroken(&format!("p95 {}", format::duration(row.p95_ms))));
    match row.dense_ms {
        Some(dense) => median.note(format!("dense attention {}", in_medians(Some(dense), row))),
        None => median,
    }
}

/// The time of another kernel on the same inputs, in milliseconds and in medians.
fn in_medians(other_ms: Option<f64>, row: &BenchRow) -> String {
    other_ms.map_or_else(
        || format::ABSENT.to_owned(),
        |millis| {
            format!(
                "{} ({}×)",
                format::duration(millis),
                format::significant(millis / row.median_ms, 3)
            )
        },
    )
}

/// A value with its unit, with a non-breaking space.
fn unbroken(words: &str) -> String {
    words.replace(' ', "\u{a0}")
}

/// The number of samples, and of how many consecutive runs each is the mean.
fn samples(row: &BenchRow) -> Prose {
    let samples = Prose::from(row.samples.to_string());
    match row.replays {
        1 => samples,
        runs => samples.note(unbroken(&format!("of {runs} runs"))),
    }
}

/// A ceiling that was raised because a kernel exceeded it.
pub(crate) fn raised_words(raised: &RaisedCeiling) -> String {
    format!(
        "The ceiling of the {} was measured at {} {unit}; {} was faster, and the ceiling was raised to its rate.",
        raised.ceiling.words(),
        format::significant(raised.measured, 4),
        raised.by,
        unit = raised.ceiling.unit()
    )
}

/// Sizes by name, `B 1, T 2048`, with non-breaking spaces.
fn shape(shape: &BTreeMap<String, u64>) -> String {
    shape.iter().map(|(name, size)| format!("{name}\u{a0}{size}")).collect::<Vec<_>>().join(", ")
}

/// Ops with the backends they were timed on, in order.
fn ops(rows: &[BenchRow]) -> Vec<(&str, BackendKind)> {
    let mut ops: Vec<(&str, BackendKind)> = Vec::new();
    for row in rows {
        if !ops.contains(&(&row.op, row.backend)) {
            ops.push((&row.op, row.backend));
        }
    }
    ops
}

fn figures(bench: &BenchReport) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (op, backend) in ops(&bench.rows) {
        let of_both = |row: &&BenchRow| row.op == op && row.backend == backend;
        let rows: Vec<&BenchRow> = bench.rows.iter().filter(of_both).collect();
        let place = format!("{op}-{backend}");
        let id = format!("plot-bench-{}", slug(&place));
        let title = format!("{op} on {backend}: share of the ceiling reached");
        let groups = groups(bench, &rows);
        if !groups.iter().flat_map(|group| &group.bars).any(|bar| bar.percent.is_some()) {
            // No bar: the table has the reason for each.
            figures.extend(sweeps(&place, op, &rows));
            continue;
        }
        let svg = bars(&id, &title, &groups);
        let installed = match rows.iter().any(|row| row.peer.is_some()) {
            true => "; installed kernels are grey",
            false => "",
        };
        let caption = from_file(&format!(
            "Percent of the ceiling that limits each of {} of {op} on {backend}{installed}",
            format::count(rows.len(), "timing")
        ));
        figures.push(Figure { id: format!("figure-bench-{}", slug(&place)), caption, svg });
        figures.extend(sweeps(&place, op, &rows));
    }
    figures
}

/// The colour of bars of installed kernels.
const GREY: usize = 5;

/// Bars by case, named by storage type, or by kernel if several have that type.
fn groups(bench: &BenchReport, rows: &[&BenchRow]) -> Vec<BarGroup> {
    let mut groups: Vec<BarGroup> = Vec::new();
    for row in rows {
        let same_case =
            || rows.iter().filter(|other| other.case == row.case && other.shape == row.shape);
        let types_differ = same_case().any(|other| other.dtype != row.dtype);
        let has_twin = same_case().filter(|other| other.dtype == row.dtype).count() > 1;
        // The common part of the names is the group's label.
        let (label, common) = match (has_twin, types_differ) {
            (false, _) => (row.dtype.clone(), String::new()),
            (true, false) => (row.variant.clone(), format!(" {}", row.dtype)),
            (true, true) => (format!("{} {}", row.dtype, row.variant), String::new()),
        };
        let bar = Bar {
            label,
            series: if row.peer.is_some() { GREY } else { series(&row.dtype) },
            percent: shares::sound(bench, row),
            note: match shares::sound(bench, row) {
                Some(_) => format!("of {}", shares::name(row)),
                None => {
                    let words = shares::words_in(bench, row);
                    Some(words).filter(|it| it != format::ABSENT).unwrap_or_default()
                }
            },
        };
        let name = format!("{}{common}: {}", row.case, shape(&row.shape));
        match groups.iter_mut().find(|group| group.label == name) {
            Some(group) => group.bars.push(bar),
            None => groups.push(BarGroup { label: name, bars: vec![bar] }),
        }
    }
    groups
}

/// A chart for each dimension along which one kernel has three or more sizes with all others equal.
fn sweeps(place: &str, op: &str, rows: &[&BenchRow]) -> Vec<Figure> {
    let mut names: Vec<&str> =
        rows.iter().flat_map(|row| row.shape.keys().map(String::as_str)).collect();
    names.compact_sort();
    names.dedup();
    let mut figures = Vec::new();
    for name in names {
        let mut found: Vec<Series> = Vec::new();
        for row in rows {
            let Some(&size) = row.shape.get(name) else { continue };
            let rest: Vec<String> = row
                .shape
                .iter()
                .filter(|(other, _)| *other != name)
                .map(|(name, size)| format!("{name} {size}"))
                .collect();
            let label = format!("{} {} ({})", row.variant, row.dtype, rest.join(", "));
            let point = (size as f64, row.gflops);
            match found.iter_mut().find(|series| series.label == label) {
                Some(series) => series.points.push(point),
                None => found.push(Series { label, points: vec![point] }),
            }
        }
        for series in &mut found {
            series.points.compact_sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        found.retain(|series| {
            let mut sizes: Vec<f64> = series.points.iter().map(|(size, _)| *size).collect();
            sizes.dedup();
            sizes.len() >= 3 && sizes.len() == series.points.len()
        });
        // Only five colours are distinguishable; more lines are in further charts.
        for (i, part) in found.chunks(5).enumerate() {
            let id = format!("sweep-{}-{}-{}", slug(place), slug(name), i + 1);
            let svg = lines(
                &format!("plot-{id}"),
                &format!("{op}: rate over {name}"),
                name,
                "GFLOP/s",
                part,
            );
            let caption =
                from_file(&format!("GFLOP/s of {op} over {name}, all else equal within a line"));
            figures.push(Figure { id: format!("figure-{id}"), caption, svg });
        }
    }
    figures
}
