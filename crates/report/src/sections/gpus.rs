//! The GPUs side by side, the paths between them, and what joins them to other machines.

use crate::document::{Block, Prose, Table};
use crate::format;
use crate::gpus::{LEGEND, RESTING, known, paths, resting, rows, sentences};
use crate::run::{FACTS_FILE, Run};
use facts::{Gpu, Machine};

pub(super) fn build(run: &Run<'_>) -> Vec<Block> {
    let machine = &run.doctor.machine;
    let gpus = known(machine);
    if gpus.is_empty() {
        return Vec::new();
    }
    let mut blocks = vec![Block::Table(facts_of(&gpus))];
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
