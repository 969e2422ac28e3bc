//! Transfers between the GPUs: copies of each pair as a matrix and a chart, collectives by size.

use crate::document::{Block, Figure, Prose, Table, Tone};
use crate::format;
use crate::plot::{PairRate, Series, lines, pairs};
use crate::run::{GPUS_FILE, Run};
use crate::together::{matrix, rate, sentences, sizes};
use facts::CompactSort;
use facts::{CollectiveKind, FabricReport, PeerCopy};

pub(super) fn build(run: &Run<'_>) -> Vec<Block> {
    let fabric = run.gpus.and_then(|gpus| gpus.fabric.as_ref());
    fabric.map(of).unwrap_or_default()
}

/// The value of a copy that a matrix shows.
type Value = (&'static str, fn(&PeerCopy) -> Option<f64>);
const MATRICES: [Value; 3] = [
    ("GB/s of copies one way", |copy| copy.gbps),
    ("GB/s of both ways at once", |copy| copy.both_gbps),
    ("µs of a copy of 16 bytes", |copy| copy.micros),
];

fn of(fabric: &FabricReport) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    if let Some(why) = &fabric.broke {
        blocks.push(Block::Notice(Tone::Bad, Prose::from(format!("It did not finish: {why}."))));
    }
    let wrong = fabric.copies.iter().any(|copy| copy.wrong > 0)
        || fabric.collectives.iter().any(|it| it.wrong > 0)
        || fabric.recorded.iter().any(|it| it.wrong > 0);
    if wrong {
        let words = "Something did not arrive as it was sent: it has no rate below.";
        blocks.push(Block::Notice(Tone::Bad, Prose::from(words)));
    }
    blocks.push(Block::List(sentences(fabric).into_iter().map(Prose::from).collect()));
    let measured = || fabric.copies.iter().any(|copy| copy.gbps.is_some());
    for (words, value) in MATRICES.into_iter().filter(|_| !fabric.copies.is_empty()) {
        blocks.push(Block::Table(of_copies(fabric, words, value)));
    }
    if !fabric.collectives.is_empty() {
        blocks.push(Block::Table(of_collectives(fabric)));
        let words = "Bandwidths as nccl-tests define them: the algorithm's is bytes by time; the bus's is what a link of each GPU carries, \
                     whatever their number: all-reduce 2 (n - 1) / n of it, the others (n - 1) / n.";
        let link = "https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md";
        blocks.push(Block::Paragraph(Prose::new().text(words).text(" ").web(link)));
    }
    let figures: Vec<Figure> =
        [measured().then(|| picture(fabric)), curves(fabric)].into_iter().flatten().collect();
    if !figures.is_empty() {
        blocks.push(Block::Figures(figures));
    }
    blocks
}

fn captioned(words: &str) -> Prose {
    Prose::new().text(format!("{words}, from ")).file(GPUS_FILE).text(".")
}

fn of_copies(fabric: &FabricReport, words: &str, value: fn(&PeerCopy) -> Option<f64>) -> Table {
    let mut head = vec!["From".to_owned()];
    head.extend(fabric.gpus.iter().map(|gpu| format!(">to GPU {gpu}")));
    let mut table = Table::new(captioned(words), &head);
    for (gpu, line) in fabric.gpus.iter().zip(matrix(fabric, value)) {
        let name = Prose::from(format!("GPU {gpu}"));
        table.row(std::iter::once(name).chain(line.into_iter().map(Prose::from)).collect());
    }
    table
}

fn of_collectives(fabric: &FabricReport) -> Table {
    let mut head = vec![">Size".to_owned()];
    for kind in CollectiveKind::ALL {
        head.extend([
            format!(">{}, µs", kind.as_str()),
            ">algorithm, GB/s".into(),
            ">bus, GB/s".into(),
        ]);
    }
    let mut table = Table::new(captioned("Collectives of all GPUs by NCCL"), &head);
    for (size, values) in sizes(fabric) {
        let cells = values.into_iter().flat_map(|of| {
            let value = |of: Option<Option<f64>>| Prose::from(rate(of.flatten()));
            [of.map(|of| of.micros), of.map(|of| of.algorithm_gbps), of.map(|of| of.bus_gbps)]
                .map(value)
        });
        table.row(std::iter::once(Prose::from(format::cache_size(size))).chain(cells).collect());
    }
    table
}

fn picture(fabric: &FabricReport) -> Figure {
    let at = |gpu: u32| fabric.gpus.iter().position(|it| *it == gpu);
    let pair = |copy: &PeerCopy| {
        Some(PairRate { from: at(copy.from)?, to: at(copy.to)?, rate: copy.gbps })
    };
    let rates: Vec<PairRate> = fabric.copies.iter().filter_map(pair).collect();
    let names: Vec<String> = fabric.gpus.iter().map(|gpu| format!("GPU {gpu}")).collect();
    let id = "fabric-copies".to_owned();
    let svg = pairs(&id, "Copies between GPUs, one way", "GB/s", &names, &rates);
    Figure { svg, caption: captioned("Copies from each GPU to each other one"), id }
}

fn curves(fabric: &FabricReport) -> Option<Figure> {
    let of_kind = |kind: CollectiveKind| {
        let all = fabric.collectives.iter().filter(|it| it.kind == kind);
        let mut points: Vec<(f64, f64)> =
            all.filter_map(|it| Some((it.bytes as f64 / 1024.0, it.bus_gbps?))).collect();
        points.compact_sort_by(|a, b| a.0.total_cmp(&b.0));
        Series { label: kind.as_str().to_owned(), points }
    };
    let series: Vec<Series> =
        CollectiveKind::ALL.into_iter().map(of_kind).filter(|it| !it.points.is_empty()).collect();
    let id = "fabric-collectives".to_owned();
    (!series.is_empty()).then(|| Figure {
        svg: lines(&id, "Bus bandwidth of NCCL's collectives", "KiB", "GB/s", &series),
        caption: captioned("Bus bandwidth over sizes"),
        id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::together::records;

    #[test]
    fn fabric_has_matrices_a_table_and_charts() {
        let count =
            |blocks: &[Block], of: fn(&Block) -> bool| blocks.iter().filter(|it| of(it)).count();
        let tables = |blocks: &[Block]| count(blocks, |it| matches!(it, Block::Table(_)));
        let bad = |blocks: &[Block]| count(blocks, |it| matches!(it, Block::Notice(Tone::Bad, _)));
        let two = of(&records::fabric(2));
        assert_eq!((tables(&two), bad(&two)), (4, 0));
        assert!(matches!(two.last(), Some(Block::Figures(figures)) if figures.len() == 2));
        // Copies to the third GPU are wrong.
        assert_eq!(bad(&of(&records::fabric(3))), 1);
        let none = of(&FabricReport { broke: Some("it hung".into()), ..FabricReport::default() });
        assert_eq!((tables(&none), bad(&none)), (0, 1));
    }
}
