//! Bandwidth limits of the links between GPUs, from their number and rate.

use facts::{FabricReport, Gpu, GpuPath, LinkLimit, Machine};

/// GB/s (1e9 bytes) per lane and direction of PCIe generations 1 to 6: the transfer rate less the line code's overhead
/// (PCI Express base specification 6.0, section 4.2).
const LANE: [f64; 6] = [0.25, 0.5, 0.985, 1.969, 3.938, 7.563];

/// Sets the link limits of a measured fabric: of each copy, and of all GPUs together (their slowest link). A limit that
/// NVML does not report is `None`.
pub fn links(machine: &Machine, fabric: &mut FabricReport) {
    let limit = |from: u32, to: u32| {
        let path = path(machine, from, to)?;
        match path.nvlinks {
            0 => pcie(machine, &[from, to]),
            count => nvlinks(gpu(machine, from)?, count),
        }
    };
    for copy in &mut fabric.copies {
        copy.links = limit(copy.from, copy.to);
    }
    let joined = |from: &u32| {
        let others = fabric.gpus.iter().filter(|to| *to != from);
        others.copied().all(|to| path(machine, *from, to).is_some_and(|path| path.nvlinks > 0))
    };
    fabric.links = if fabric.gpus.iter().all(joined) {
        let all = |index: &u32| {
            let gpu = gpu(machine, *index)?;
            let up = gpu.health.nvlinks.as_ref()?.value.iter().filter(|link| link.up).count();
            nvlinks(gpu, up as u32)
        };
        let each: Option<Vec<LinkLimit>> = fabric.gpus.iter().map(all).collect();
        each.and_then(slowest)
    } else {
        pcie(machine, &fabric.gpus)
    };
}

fn gpu(machine: &Machine, index: u32) -> Option<&Gpu> {
    machine.gpus.iter().find(|gpu| gpu.index == index)
}

fn path(machine: &Machine, one: u32, other: u32) -> Option<&GpuPath> {
    let between = (one.min(other), one.max(other));
    let paths = &machine.interconnect.paths.as_ref()?.value;
    paths.iter().find(|path| path.between == between)
}

fn nvlinks(gpu: &Gpu, count: u32) -> Option<LinkLimit> {
    let links = gpu.health.nvlinks.as_ref()?;
    let up = links.value.iter().filter(|link| link.up);
    let each = f64::from(up.filter_map(|link| link.megabytes_per_second).next()?) / 1e3;
    let words = format!("{count} NVLinks of {each:.1} GB/s");
    Some(LinkLimit { gbps: f64::from(count) * each, words, source: links.source.clone() })
}

/// The slowest PCIe link of these GPUs: a transfer through the host crosses all of them.
fn pcie(machine: &Machine, gpus: &[u32]) -> Option<LinkLimit> {
    let of = |index: &u32| {
        let link = gpu(machine, *index)?.health.pcie.as_ref()?;
        // The current generation is lower at idle than under load; the number of lanes does not change.
        let generation = link.value.generation_most.unwrap_or(link.value.generation);
        let lane = LANE.get(generation.checked_sub(1)? as usize)?;
        let (gbps, width) = (lane * f64::from(link.value.width), link.value.width);
        let words = format!("PCIe {generation}.0 x{width}");
        Some(LinkLimit { gbps, words, source: link.source.clone() })
    };
    gpus.iter().map(of).collect::<Option<Vec<_>>>().and_then(slowest)
}

fn slowest(limits: Vec<LinkLimit>) -> Option<LinkLimit> {
    limits.into_iter().min_by(|one, other| one.gbps.total_cmp(&other.gbps))
}

/// Fabric records for tests.
#[cfg(test)]
pub(crate) mod records {
    use facts::{
        Collective, CollectiveKind, FabricReport, GpusReport, LinkLimit, PeerCopy, SCHEMA,
    };

    pub(crate) fn nvlink() -> LinkLimit {
        LinkLimit { gbps: 478.1, words: "18 NVLinks of 26.6 GB/s".into(), source: "NVML".into() }
    }

    /// A fabric of `count` GPUs that copy to each other at `gbps` GB/s.
    pub(crate) fn fabric(count: u32, gbps: f64) -> FabricReport {
        let copy = |from, to| PeerCopy {
            from,
            to,
            direct: true,
            bytes: 256 << 20,
            gbps: Some(gbps),
            both_gbps: Some(1.9 * gbps),
            micros: Some(2.5),
            wrong: 0,
            links: Some(nvlink()),
        };
        let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        let sum = Collective {
            kind: CollectiveKind::AllReduce,
            bytes: 256 << 20,
            micros: Some(800.0),
            algorithm_gbps: Some(335.5),
            bus_gbps: Some(335.5),
            wrong: 0,
        };
        FabricReport {
            gpus: (0..count).collect(),
            copies: pairs
                .filter(|(from, to)| from != to)
                .map(|(from, to)| copy(from, to))
                .collect(),
            collectives: vec![sum],
            links: Some(nvlink()),
            ..FabricReport::default()
        }
    }

    pub(crate) fn report(fabric: FabricReport) -> GpusReport {
        GpusReport {
            schema: SCHEMA,
            gpus: Vec::new(),
            kinds: Vec::new(),
            fabric: Some(fabric),
            sustained: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::machines;
    use facts::{Fact, NvLink, PcieLink, PciePath};

    #[test]
    fn link_limit_is_count_times_rate() {
        // NVLink joins GPUs 0 and 1; GPU 2 has eight PCIe lanes.
        let mut machine = machines::h200();
        let one = machine.gpus[0].clone();
        machine.gpus = (0..3).map(|index| Gpu { index, ..one.clone() }).collect();
        for gpu in &mut machine.gpus {
            let width = if gpu.index == 2 { 8 } else { 16 };
            let link =
                PcieLink { generation: 1, width, generation_most: Some(5), width_most: Some(16) };
            gpu.health.pcie = Some(Fact::new(link, "NVML"));
            let mut links =
                vec![NvLink { up: true, megabytes_per_second: Some(26_562), remote: None }; 18];
            links[3].up = gpu.index != 1;
            gpu.health.nvlinks = Some(Fact::new(links, "NVML"));
        }
        let path = |one, other| GpuPath {
            between: (one, other),
            pcie: PciePath::Node,
            nvlinks: if other == 2 { 0 } else { 17 },
        };
        machine.interconnect.paths =
            Some(Fact::new(vec![path(0, 1), path(0, 2), path(1, 2)], "NVML"));
        let mut fabric = records::fabric(3, 1.0);
        links(&machine, &mut fabric);
        let of = |from, to| {
            let copy =
                fabric.copies.iter().find(|copy| (copy.from, copy.to) == (from, to)).unwrap();
            let limit = copy.links.as_ref().unwrap();
            (limit.words.as_str(), (limit.gbps * 10.0).round() / 10.0)
        };
        assert_eq!(of(1, 0), ("17 NVLinks of 26.6 GB/s", 451.6));
        assert_eq!(of(0, 2), ("PCIe 5.0 x8", 31.5));
        // The slowest link limits a collective.
        assert_eq!(fabric.links.as_ref().unwrap().words, "PCIe 5.0 x8");
        let mut two = records::fabric(2, 1.0);
        links(&machine, &mut two);
        assert_eq!(two.links.unwrap().words, "17 NVLinks of 26.6 GB/s");
        // Without NVML's facts there are no limits.
        let mut blank = records::fabric(2, 1.0);
        links(&Machine::unknown(), &mut blank);
        assert!(blank.links.is_none() && blank.copies.iter().all(|copy| copy.links.is_none()));
    }
}
