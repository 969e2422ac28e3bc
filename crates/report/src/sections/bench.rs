//! Ceilings first, then what each verified kernel reaches of them.

use super::parity::series;
use crate::document::{Block, Figure, Prose, Table, slug};
use crate::format;
use crate::plot::{Bar, BarGroup, Series, bars, lines};
use crate::run::{BENCH_FILE, Run};
use facts::{BackendKind, BenchReport, BenchRow, Bound, Ceilings};
use std::collections::BTreeMap;

pub(super) fn build(run: &Run<'_>) -> Vec<Block> {
    let Some(bench) = run.bench else {
        return vec![Block::Paragraph(Prose::from("Timing was not part of this run."))];
    };
    let intro = Prose::new()
        .text(format!("{} (", format::count(bench.rows.len(), "timing")))
        .file(BENCH_FILE)
        .text("). Only a kernel that was verified in the same run has a time. Times are those of one call after warm-up; GFLOP/s counts by the op's formula, GB/s counts each input read once and each output written once.");
    let mut blocks = vec![Block::Paragraph(intro)];
    blocks.extend(bench.ceilings.iter().map(|ceilings| Block::Table(self::ceilings(ceilings))));
    if !bench.rows.is_empty() {
        blocks.push(Block::Figures(figures(bench)));
        blocks.push(Block::Table(timings(bench)));
    }
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
    row("Matrix product, f32", ceilings.gemm_gflops.f32, "GFLOP/s", "kernels bound by arithmetic");
    row(
        "Matrix product, bf16 in, f32 sums",
        ceilings.gemm_gflops.bf16,
        "GFLOP/s",
        "bf16 kernels bound by arithmetic",
    );
    table
}

fn timings(bench: &BenchReport) -> Table {
    let caption = "Times of one call; each row was allowed by the relative error of its own check";
    let heads = [
        "Op",
        "Case",
        "Shape",
        "Type",
        "Kernel",
        ">Median",
        ">p95",
        ">GFLOP/s",
        ">GB/s",
        ">Of ceiling",
        ">Rel. error",
        ">Samples",
    ];
    let with_reference = bench.rows.iter().any(|row| row.reference_ms.is_some());
    let with_dense = bench.rows.iter().any(|row| row.dense_ms.is_some());
    let heads = heads.into_iter().chain(with_reference.then_some(">f64 reference"));
    let heads = heads.chain(with_dense.then_some(">Dense attention"));
    let mut table = Table::new(from_file(caption), &heads.collect::<Vec<_>>());
    for row in &bench.rows {
        let mut cells = vec![
            Prose::new().strong(&row.op),
            Prose::new().code(&row.case),
            Prose::from(shape(&row.shape)),
            Prose::from(&row.dtype),
            Prose::new().code(format!("{} {}", row.variant, row.backend)),
            Prose::from(format::duration(row.median_ms)),
            Prose::from(format::duration(row.p95_ms)),
            Prose::from(format::significant(row.gflops, 3)),
            Prose::from(format::significant(row.gbps, 3)),
            Prose::from(share(row)),
            Prose::from(format::error(row.verified_rel_err)),
            Prose::from(samples(row)),
        ];
        if with_reference {
            cells.push(Prose::from(in_medians(row.reference_ms, row)));
        }
        if with_dense {
            cells.push(Prose::from(in_medians(row.dense_ms, row)));
        }
        table.row(cells);
    }
    table
}

/// Another's time on the same inputs and how many medians it holds.
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

/// `61.4 % of GEMM`, or a dash when the ceiling was not measured.
fn share(row: &BenchRow) -> String {
    row.pct_of_ceiling.map_or_else(
        || format::ABSENT.to_owned(),
        |share| format!("{} {}", format::percent(share), of(row.bound)),
    )
}

/// How many samples there are, and of how many runs back to back each is the mean.
fn samples(row: &BenchRow) -> String {
    match row.replays {
        1 => row.samples.to_string(),
        runs => format!("{}\u{a0}of\u{a0}{runs}\u{a0}runs", row.samples),
    }
}

/// Which ceiling a share refers to.
fn of(bound: Bound) -> &'static str {
    match bound {
        Bound::Compute => "of GEMM",
        Bound::Memory => "of copy",
    }
}

/// Sizes by name: `B 1, T 2048`, with spaces at which a table cell may not be broken.
fn shape(shape: &BTreeMap<String, u64>) -> String {
    shape.iter().map(|(name, size)| format!("{name}\u{a0}{size}")).collect::<Vec<_>>().join(", ")
}

/// Ops with the backends they were timed on, as they come.
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
        let svg = bars(&id, &title, &groups(&rows));
        let caption = from_file(&format!(
            "Percent of the ceiling that limits each of {} of {op} on {backend}",
            format::count(rows.len(), "timing")
        ));
        figures.push(Figure { id: format!("figure-bench-{}", slug(&place)), caption, svg });
        figures.extend(sweeps(&place, op, &rows));
    }
    figures
}

/// Bars by case; a bar is named by its storage type, and by its kernel where the type alone does not tell it.
fn groups(rows: &[&BenchRow]) -> Vec<BarGroup> {
    let mut groups: Vec<BarGroup> = Vec::new();
    for row in rows {
        let twins = rows.iter().filter(|other| {
            other.case == row.case && other.shape == row.shape && other.dtype == row.dtype
        });
        let label = if twins.count() > 1 {
            format!("{} {}", row.dtype, row.variant)
        } else {
            row.dtype.clone()
        };
        let bar = Bar {
            label,
            series: series(&row.dtype),
            percent: row.pct_of_ceiling,
            note: of(row.bound).to_owned(),
        };
        let name = format!("{}: {}", row.case, shape(&row.shape));
        match groups.iter_mut().find(|group| group.label == name) {
            Some(group) => group.bars.push(bar),
            None => groups.push(BarGroup { label: name, bars: vec![bar] }),
        }
    }
    groups
}

/// A picture for each dimension along which one kernel has three or more sizes with all else equal.
fn sweeps(place: &str, op: &str, rows: &[&BenchRow]) -> Vec<Figure> {
    let mut names: Vec<&str> =
        rows.iter().flat_map(|row| row.shape.keys().map(String::as_str)).collect();
    names.sort_unstable();
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
            series.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        found.retain(|series| {
            let mut sizes: Vec<f64> = series.points.iter().map(|(size, _)| *size).collect();
            sizes.dedup();
            sizes.len() >= 3 && sizes.len() == series.points.len()
        });
        // Five colours are told apart; more lines than that go into a further picture.
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
