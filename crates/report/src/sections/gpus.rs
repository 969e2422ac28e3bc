//! The GPUs side by side, the paths between them, and the machine's network ports.

use crate::checked_gpus::{lines, votes};
use crate::document::{Block, Figure, Prose, Table, Tone};
use crate::format;
use crate::gpus::{LEGEND, RESTING, known, paths, resting, rows, sentences};
use crate::plot::{RatioColumn, ratios};
use crate::run::{FACTS_FILE, GPUS_FILE, Run};
use facts::CompactCollect;
use facts::{Gpu, GpuKind, GpuPart, GpusReport, Machine};
use std::collections::BTreeSet;

pub(super) fn build(run: &Run<'_>) -> Vec<Block> {
    let machine = &run.doctor.machine;
    let mut blocks = run.gpus.map(checked).unwrap_or_default();
    let gpus = known(machine);
    if gpus.is_empty() {
        return blocks;
    }
    blocks.push(Block::Table(facts_of(&gpus)));
    if resting(&gpus) {
        blocks.push(Block::Paragraph(Prose::from(RESTING)));
    }
    if let Some(matrix) = paths(machine, &gpus) {
        blocks.push(Block::Table(topology(machine, &gpus, matrix)));
        blocks.push(Block::Paragraph(Prose::from(LEGEND)));
    }
    if !machine.interconnect.ports.is_empty() {
        blocks.push(Block::Table(ports(machine)));
    }
    blocks.push(Block::List(sentences(machine).into_iter().map(Prose::from).collect()));
    blocks
}

/// The results of the check on each GPU.
fn checked(report: &GpusReport) -> Vec<Block> {
    let mut head = vec!["Check".to_owned()];
    head.extend(report.gpus.iter().map(|gpu| format!(">GPU {}", gpu.index)));
    let caption = Prose::new().text("What the check made of each GPU, from ").file(GPUS_FILE);
    let folders = report.gpus.iter().filter(|gpu| !gpu.folder.is_empty());
    let folders: Vec<String> = folders.map(|gpu| format!("{}/", gpu.folder)).collect();
    let caption = match folders.as_slice() {
        [] => caption.text("."),
        folders => {
            caption.text(format!("; the rows of all but the first are in {}.", folders.join(", ")))
        }
    };
    let mut table = Table::new(caption, &head);
    let names = |gpu: &GpuPart| Prose::from(gpu.name.as_str());
    table.row(std::iter::once(Prose::from("name")).chain(report.gpus.iter().map(names)).collect());
    for line in lines(report) {
        let values = line.values.into_iter().map(Prose::from);
        table.row(std::iter::once(Prose::from(line.name)).chain(values).collect());
    }
    let mut blocks = vec![Block::Table(table)];
    for gpu in &report.gpus {
        if let Some(why) = &gpu.broke {
            let words = format!("GPU {} did not finish: {why}.", gpu.index);
            blocks.push(Block::Notice(Tone::Bad, Prose::from(words)));
        }
    }
    for (kind, vote) in report.kinds.iter().zip(votes(report)) {
        let vote = Prose::from(vote);
        blocks.push(match kind.differing.is_empty() {
            true => Block::Paragraph(vote),
            false => Block::Notice(Tone::Bad, vote),
        });
    }
    blocks.extend(report.kinds.iter().filter(|kind| !kind.differing.is_empty()).map(differing));
    let pictures: Vec<Figure> = report.kinds.iter().enumerate().filter_map(picture).collect();
    if !pictures.is_empty() {
        blocks.push(Block::Figures(pictures));
    }
    blocks
}

/// Maximum checks with different bits that are listed.
const LISTED: usize = 20;

fn differing(kind: &GpuKind) -> Block {
    let mut head = vec!["Check whose bits differ".to_owned()];
    head.extend(kind.gpus.iter().map(|gpu| format!("GPU {gpu}")));
    let all = kind.differing.len();
    let words = format!("{} of {all}, SHA-256 of the outputs, from ", all.min(LISTED));
    let mut table = Table::new(Prose::new().text(words).file(GPUS_FILE).text("."), &head);
    for differ in kind.differing.iter().take(LISTED) {
        let bits = |gpu: &u32| {
            let bits = differ.bits.get(gpu).map(|bits| bits.get(..12).unwrap_or(bits));
            bits.map_or(Prose::from(format::ABSENT), |bits| Prose::new().code(bits))
        };
        let check = Prose::from(differ.check.as_str());
        table.row(std::iter::once(check).chain(kind.gpus.iter().map(bits)).collect());
    }
    Block::Table(table)
}

/// Each op's time on each GPU, relative to that of its siblings.
fn picture((place, kind): (usize, &GpuKind)) -> Option<Figure> {
    let ops: BTreeSet<&String> = kind.speed.iter().flat_map(|gpu| gpu.by_op.keys()).compact_set();
    let rows: Vec<String> = ops.into_iter().cloned().collect();
    let columns: Vec<RatioColumn> = kind
        .speed
        .iter()
        .map(|gpu| RatioColumn {
            label: format!("GPU {}", gpu.gpu),
            ratios: rows.iter().map(|op| gpu.by_op.get(op).copied()).collect(),
        })
        .collect();
    let id = format!("gpu-ratios-{}", place + 1);
    let words = format!("Median time of each op's kernels on {}, from ", kind.name);
    (!rows.is_empty()).then(|| Figure {
        svg: ratios(
            &id,
            &format!("{}: each op relative to its siblings", kind.name),
            &rows,
            &columns,
        ),
        caption: Prose::new().text(words).file(GPUS_FILE).text("."),
        id,
    })
}

fn captioned(words: &str) -> Prose {
    Prose::new().text(format!("{words}, from ")).file(FACTS_FILE).text(".")
}

fn facts_of(gpus: &[&Gpu]) -> Table {
    let mut head = vec!["Fact".to_owned()];
    head.extend(gpus.iter().map(|gpu| format!(">GPU {}", gpu.index)));
    head.push("Read from".to_owned());
    let words = "The GPUs side by side; errors are corrected / uncorrected ones";
    let mut table = Table::new(captioned(words), &head);
    let cells = |name: &str, values: Vec<String>, source: &str| {
        let values = values.into_iter().map(Prose::from);
        std::iter::once(Prose::from(name))
            .chain(values)
            .chain([Prose::new().code(source)])
            .collect()
    };
    let names = gpus.iter().map(|gpu| gpu.name.value.clone()).collect();
    let source = gpus.first().map_or("", |gpu| gpu.name.source.as_str());
    table.row(cells("name", names, source));
    for row in rows(gpus) {
        table.row(cells(row.name, row.values, &row.source));
    }
    table
}

fn topology(machine: &Machine, gpus: &[&Gpu], matrix: Vec<Vec<String>>) -> Table {
    let mut head = vec![String::new()];
    head.extend(gpus.iter().map(|gpu| format!(">GPU {}", gpu.index)));
    let source = machine.interconnect.paths.as_ref().map_or("", |paths| paths.source.as_str());
    let caption = captioned(&format!("The path between each two GPUs ({source})"));
    let mut table = Table::new(caption, &head);
    for (gpu, line) in gpus.iter().zip(matrix) {
        let name = Prose::from(format!("GPU {}", gpu.index));
        table.row(std::iter::once(name).chain(line.into_iter().map(Prose::from)).collect());
    }
    table
}

fn ports(machine: &Machine) -> Table {
    let head = ["Port", "Kind", "State", "Rate", ">NUMA node", "Read from"];
    let mut table = Table::new(captioned("InfiniBand and RoCE ports"), &head);
    for port in &machine.interconnect.ports {
        let or_absent = |words: Option<&str>| Prose::from(words.unwrap_or(format::ABSENT));
        let node = port.numa_node.map(|node| node.to_string());
        table.row(vec![
            Prose::new().code(&port.name),
            or_absent(port.link_layer.as_deref()),
            Prose::from(port.state.as_str()),
            or_absent(port.rate.as_deref()),
            or_absent(node.as_deref()),
            Prose::new().code(&port.source),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checked_gpus::records;

    #[test]
    fn faulty_gpu_has_a_notice_a_table_and_a_chart() {
        let count =
            |blocks: &[Block], of: fn(&Block) -> bool| blocks.iter().filter(|it| of(it)).count();
        let notices =
            |blocks: &[Block]| count(blocks, |it| matches!(it, Block::Notice(Tone::Bad, _)));
        let tables = |blocks: &[Block]| count(blocks, |it| matches!(it, Block::Table(_)));
        let figures = |blocks: &[Block]| count(blocks, |it| matches!(it, Block::Figures(_)));
        let bad = checked(&records::checked(3));
        assert_eq!((notices(&bad), tables(&bad), figures(&bad)), (1, 2, 1));
        let mut good = records::checked(3);
        good.kinds[0].differing.clear();
        assert_eq!((notices(&checked(&good)), tables(&checked(&good))), (0, 1));
        // A single GPU has a memory test and no comparison.
        let mut one = records::checked(1);
        one.kinds.clear();
        one.gpus[0].broke = Some("it was killed".into());
        let one = checked(&one);
        assert_eq!((notices(&one), tables(&one), figures(&one)), (1, 1, 0));
    }
}
