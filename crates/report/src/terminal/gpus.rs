use super::Style;
use super::layout::{Column, paragraph, plain, render, table};
use crate::checked_gpus::{lines, votes};
use crate::gpus::{LEGEND, RESTING, known, paths, resting, rows, sentences};
use facts::{GpusReport, Machine};

/// Width of the column of names and of each GPU's column, in characters.
const NAMES: usize = 26;
const EACH: usize = 13;

/// The GPUs side by side, as many as fit the width, and the paths between them; empty if nothing is known about any.
pub(super) fn gpus(machine: &Machine, style: Style) -> String {
    let gpus = known(machine);
    let mut out = String::new();
    if gpus.is_empty() {
        return out;
    }
    let per_table = (style.width.saturating_sub(NAMES) / EACH).max(1);
    for some in gpus.chunks(per_table) {
        let mut columns = vec![Column::word("gpus side by side")];
        columns.extend(some.iter().map(|gpu| Column::wrapped(format!("gpu {}", gpu.index))));
        let mut table = table(style, &columns);
        for row in rows(some) {
            let values = row.values.iter().map(plain);
            table.add_row(std::iter::once(plain(row.name)).chain(values).collect::<Vec<_>>());
        }
        out.push_str(&render(&table));
        out.push('\n');
    }
    if resting(&gpus) {
        out.push_str(&paragraph(style, RESTING));
        out.push('\n');
    }
    if let Some(matrix) = paths(machine, &gpus) {
        let mut columns = vec![Column::word("paths")];
        columns.extend(gpus.iter().map(|gpu| Column::word(format!("gpu {}", gpu.index))));
        let mut table = table(style, &columns);
        for (gpu, line) in gpus.iter().zip(matrix) {
            let name = format!("gpu {}", gpu.index);
            table.add_row(std::iter::once(name).chain(line).map(plain).collect::<Vec<_>>());
        }
        out.push_str(&render(&table));
        out.push_str(&paragraph(style, LEGEND));
        out.push('\n');
    }
    for port in &machine.interconnect.ports {
        let kind = port.link_layer.as_deref().unwrap_or("unknown kind");
        let rate = port.rate.as_deref().unwrap_or("unknown rate");
        out.push_str(&paragraph(style, &format!("{}: {kind}, {}, {rate}", port.name, port.state)));
    }
    for sentence in sentences(machine) {
        out.push_str(&paragraph(style, &sentence));
    }
    out
}

/// The results of a check for each GPU, and the vote on their bits.
pub(super) fn checked(report: &GpusReport, style: Style) -> String {
    let mut out = String::new();
    let per_table = (style.width.saturating_sub(NAMES) / EACH).max(1);
    for first in (0..report.gpus.len()).step_by(per_table) {
        let some = first..(first + per_table).min(report.gpus.len());
        let mut columns = vec![Column::wrapped("gpus checked")];
        let heads = report.gpus[some.clone()].iter();
        columns.extend(heads.map(|gpu| Column::wrapped(format!("gpu {}", gpu.index))));
        let mut table = table(style, &columns);
        for line in lines(report) {
            let values = line.values[some.clone()].iter().map(plain);
            table.add_row(std::iter::once(plain(&line.name)).chain(values).collect::<Vec<_>>());
        }
        out.push_str(&render(&table));
        out.push('\n');
    }
    for sentence in votes(report) {
        out.push_str(&paragraph(style, &sentence));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use facts::{Fact, Gpu, GpuHealth, GpuPath, GpuVendor, NvLink, PcieLink, PciePath};

    fn gpu(index: u32) -> Gpu {
        let link = NvLink { up: true, megabytes_per_second: Some(26_562), remote: None };
        let pcie = PcieLink {
            generation: 5,
            width: if index == 1 { 8 } else { 16 },
            generation_most: Some(5),
            width_most: Some(16),
        };
        Gpu {
            index,
            vendor: GpuVendor::Nvidia,
            name: Fact::new("NVIDIA H200".into(), "NVML"),
            uuid: None,
            compute_capability: None,
            memory_total_bytes: None,
            memory_used_bytes: None,
            pci_bus: None,
            mig: Some(false),
            persistence: None,
            health: GpuHealth {
                pcie: Some(Fact::new(pcie, "NVML")),
                nvlinks: Some(Fact::new(vec![link; 18], "NVML")),
                nearest_cores: Some(Fact::new("0-47,96-143".into(), "/sys")),
                held_down_by: Some(Fact::new(vec!["HW_THERMAL_SLOWDOWN".into()], "NVML")),
                ..GpuHealth::default()
            },
        }
    }

    fn machine(count: u32) -> Machine {
        let mut machine = Machine::unknown();
        machine.gpus = (0..count).map(gpu).collect();
        let path = |(one, other): (u32, u32)| GpuPath {
            between: (one, other),
            pcie: PciePath::Node,
            nvlinks: if other == 2 { 0 } else { 18 },
        };
        let pairs = (0..count).flat_map(|one| (one + 1..count).map(move |other| (one, other)));
        machine.interconnect.paths = Some(Fact::new(pairs.map(path).collect(), "NVML"));
        machine
    }

    #[test]
    fn eight_gpus_fit_eighty_columns() {
        let text = gpus(&machine(8), Style::default());
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line:?}");
        }
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        for expect in [
            vec!["PCIe", "lanes", "16", "8", "of", "16", "16", "16"],
            vec!["gpu", "0", "X", "NV18", "NODE", "NV18", "NV18", "NV18", "NV18", "NV18"],
            vec!["gpu", "2", "NODE", "NODE", "X", "NV18", "NV18", "NV18", "NV18", "NV18"],
        ] {
            assert!(lines.contains(&expect), "no {expect:?} in\n{text}");
        }
        // Two parts of four GPUs, each with all facts.
        assert_eq!(text.matches("PCIe generation ").count(), 2, "{text}");
        assert!(text.contains("could not be read"), "{text}");
    }

    #[test]
    fn eight_checked_gpus_fit_eighty_columns() {
        let text = checked(&crate::checked_gpus::records::checked(8), Style::default());
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line:?}");
        }
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for expect in ["words that were wrong", "125.0 %", "most disagree with GPU 1", "gpu 7"] {
            assert!(words.contains(expect), "no {expect} in\n{text}");
        }
    }

    #[test]
    fn one_gpu_has_no_paths_and_none_has_nothing() {
        let text = gpus(&machine(1), Style::default());
        assert!(text.contains("NVLinks up") && !text.contains("paths"), "{text}");
        assert_eq!(gpus(&machine(0), Style::default()), "");
    }
}
