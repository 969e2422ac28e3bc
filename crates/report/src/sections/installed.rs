//! The kernels of the Python environment: which are ready, by evidence, and how fast they are compared with
//! firstlight's own.

use crate::counts::{Counts, cell, count_columns, largest_error};
use crate::document::{Block, Prose, Table};
use crate::format;
use crate::installed::{Installed, installed, sentence};
use crate::run::{BENCH_FILE, PARITY_FILE, Run};
use facts::{BenchReport, BenchRow};

pub(super) fn build(run: &Run<'_>) -> Vec<Block> {
    let kernels = of_run(run);
    if kernels.is_empty() {
        return Vec::new();
    }
    let intro = Prose::new()
        .text(format!("{} (", sentence(&kernels)))
        .file(PARITY_FILE)
        .text("). Ready means that a profiler saw its own kernels in every call that it accepted, and that all results were correct; results of other kernels are FALLBACK, even if they are correct.");
    let mut blocks = vec![Block::Paragraph(intro), Block::Table(by_kernel(&kernels))];
    blocks.extend(run.bench.and_then(comparison).map(Block::Table));
    blocks
}

/// The installed kernels that the run checked.
pub(super) fn of_run<'a>(run: &Run<'a>) -> Vec<Installed<'a>> {
    installed(run.parity.into_iter().flat_map(|parity| &parity.rows))
}

/// Head of the column after the result, because a narrow screen shows only the first columns.
const WHY: &str = "Why, or what was seen to run";

fn by_kernel(kernels: &[Installed<'_>]) -> Table {
    let rows = || kernels.iter().flat_map(|kernel| kernel.rows.iter().copied());
    let columns = count_columns(Counts::of(rows()));
    let mut heads: Vec<String> = ["Kernel", "Result", WHY].map(str::to_owned).to_vec();
    heads.extend(columns.iter().map(|(head, ..)| format!(">{head}")));
    heads.push(">Largest error / allowed".to_owned());
    let caption =
        Prose::new().text("Installed kernels by evidence, from ").file(PARITY_FILE).text(".");
    let mut table = Table::new(caption, &heads);
    table.narrow = true;
    for kernel in kernels {
        let (tone, word) = kernel.result();
        let mut name = Prose::new().code(kernel.name);
        if kernel.package != kernel.name {
            name = name.note(kernel.package);
        }
        let mut cells = vec![name, Prose::new().chip(tone, word), details(kernel)];
        cells.extend(columns.iter().map(|(_, count, tone)| cell(count(kernel.counts), *tone)));
        let worst = largest_error(kernel.rows.iter().copied());
        cells.push(Prose::from(worst));
        table.row(cells);
    }
    table
}

fn details(kernel: &Installed<'_>) -> Prose {
    match (kernel.why(), kernel.seen()) {
        (Some((why, 0)), _) => Prose::from(why),
        (Some((why, others)), _) => {
            Prose::from(format!("{why}; and {} for other reasons", format::count(others, "check")))
        }
        (None, Some(seen)) => Prose::new().code(seen),
        (None, None) => Prose::from(format::ABSENT),
    }
}

/// Times of installed kernels compared with firstlight's own for the same call; `None` if none was timed.
fn comparison(bench: &BenchReport) -> Option<Table> {
    let caption = "Times of one call, interleaved in this run; the last column is the installed kernel's time divided by firstlight's, from ";
    let mut table = Table::new(
        Prose::new().text(caption).file(BENCH_FILE).text("."),
        &["Op", "Case", "Type", "firstlight", ">Median", "Installed", ">Median", ">Ratio"],
    );
    for row in bench.rows.iter().filter(|row| row.peer.is_some()) {
        let same = |own: &&BenchRow| {
            own.peer.is_none()
                && (&own.op, &own.case, &own.dtype, own.backend)
                    == (&row.op, &row.case, &row.dtype, row.backend)
        };
        let own = bench.rows.iter().find(same);
        let or_dash =
            |words: Option<String>| Prose::from(words.unwrap_or_else(|| format::ABSENT.to_owned()));
        let ratio = |own: &BenchRow| format::significant(row.median_ms / own.median_ms, 3) + "×";
        table.row(vec![
            Prose::new().strong(&row.op),
            Prose::new().code(&row.case),
            Prose::from(&row.dtype),
            own.map_or_else(|| Prose::from(format::ABSENT), |own| Prose::new().code(&own.variant)),
            or_dash(own.map(|own| format::duration(own.median_ms))),
            Prose::new().code(&row.variant),
            Prose::from(format::duration(row.median_ms)),
            or_dash(own.map(ratio)),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}
