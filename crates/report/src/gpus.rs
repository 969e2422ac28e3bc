//! GPUs side by side: a row for each fact, a value for each GPU, and the matrix of paths between them.

use crate::format;
use facts::{EccCounts, Fact, Gpu, GpuHealth, GpuVendor, Machine, NvLink, PciePath};

/// Note on GPUs whose PCIe link is in a low-power state.
pub(crate) const RESTING: &str =
    "An idle GPU lowers the generation of its PCIe link to save power; the number of lanes stays.";
/// Legend of the matrix of paths.
pub(crate) const LEGEND: &str = "NV#: number of NVLinks. PIX: at most one PCIe bridge. PXB: several. PHB: the host's bridge. \
                                 NODE: host bridges of one NUMA node. SYS: from one NUMA node to another.";

/// A fact of all GPUs.
pub(crate) struct Row {
    /// Its name and unit.
    pub(crate) name: &'static str,
    /// A value for each GPU in order.
    pub(crate) values: Vec<String>,
    /// Source of the first value.
    pub(crate) source: String,
}

/// NVIDIA GPUs with hardware facts.
pub(crate) fn known(machine: &Machine) -> Vec<&Gpu> {
    let nvidia = machine.gpus.iter().filter(|gpu| gpu.vendor == GpuVendor::Nvidia);
    let gpus: Vec<&Gpu> = nvidia.collect();
    if gpus.iter().all(|gpu| gpu.health.is_blank()) { Vec::new() } else { gpus }
}

type Value = Option<(String, String)>;

fn of<T>(fact: &Option<Fact<T>>, words: impl Fn(&T) -> String) -> Value {
    fact.as_ref().map(|fact| (words(&fact.value), fact.source.clone()))
}

fn switch(on: bool) -> String {
    if on { "on".to_owned() } else { "off".to_owned() }
}

fn counts(counts: &EccCounts) -> String {
    format!("{} / {}", counts.corrected, counts.uncorrected)
}

fn of_most(now: u32, most: Option<u32>) -> String {
    match most {
        Some(most) if most != now => format!("{now} of {most}"),
        _ => now.to_string(),
    }
}

fn up(links: &[NvLink]) -> u32 {
    u32::try_from(links.iter().filter(|link| link.up).count()).unwrap_or(u32::MAX)
}

fn watts(health: &GpuHealth) -> Value {
    let watts = |milliwatts: u32| (f64::from(milliwatts) / 1e3).round();
    let cap = health.power_cap_milliwatts.as_ref().map(|cap| format!(" of {}", watts(cap.value)));
    of(&health.power_milliwatts, |now| {
        format!("{}{}", watts(*now), cap.clone().unwrap_or_default())
    })
}

/// Every fact that at least one GPU has.
pub(crate) fn rows(gpus: &[&Gpu]) -> Vec<Row> {
    type Ask = fn(&Gpu) -> Value;
    let asked: [(&'static str, Ask); 19] = [
        ("PCIe generation", |gpu| {
            of(&gpu.health.pcie, |link| of_most(link.generation, link.generation_most))
        }),
        ("PCIe lanes", |gpu| of(&gpu.health.pcie, |link| of_most(link.width, link.width_most))),
        ("NVLinks up", |gpu| {
            let count = |links: &Vec<NvLink>| u32::try_from(links.len()).ok();
            of(&gpu.health.nvlinks, |links| of_most(up(links), count(links)))
        }),
        ("GB/s of a link, each way", |gpu| {
            let links = gpu.health.nvlinks.as_ref()?;
            let rate = links.value.iter().find_map(|link| link.megabytes_per_second)?;
            Some((format::significant(f64::from(rate) / 1e3, 3), links.source.clone()))
        }),
        ("NUMA node", |gpu| of(&gpu.health.numa_node, u32::to_string)),
        ("nearest cores", |gpu| of(&gpu.health.nearest_cores, String::clone)),
        ("clock, MHz", |gpu| {
            let most = gpu.health.sm_mhz_most.as_ref().map(|most| most.value);
            of(&gpu.health.sm_mhz, |now| of_most(*now, most))
        }),
        ("memory clock, MHz", |gpu| of(&gpu.health.memory_mhz, u32::to_string)),
        ("clocks held down by", |gpu| {
            of(&gpu.health.held_down_by, |names| match names.as_slice() {
                [] => "nothing".to_owned(),
                names => names.join(", ").replace('_', " ").to_lowercase(),
            })
        }),
        ("busy, %", |gpu| of(&gpu.health.busy_percent, u32::to_string)),
        ("power, W", |gpu| watts(&gpu.health)),
        ("temperature, °C", |gpu| of(&gpu.health.celsius, u32::to_string)),
        ("error correction", |gpu| of(&gpu.health.ecc, |on| switch(*on))),
        ("errors since load", |gpu| of(&gpu.health.ecc_volatile, counts)),
        ("errors of its life", |gpu| of(&gpu.health.ecc_aggregate, counts)),
        ("rows replaced", |gpu| {
            of(&gpu.health.remapped, |rows| {
                let pending = if rows.pending { ", pending" } else { "" };
                let failed = if rows.failed { ", failed" } else { "" };
                format!("{} / {}{pending}{failed}", rows.corrected, rows.uncorrected)
            })
        }),
        ("persistence mode", |gpu| {
            Some((switch(gpu.persistence?), "NVML nvmlDeviceGetPersistenceMode".to_owned()))
        }),
        ("MIG", |gpu| Some((switch(gpu.mig?), "NVML nvmlDeviceGetMigMode".to_owned()))),
        ("confidential", |gpu| of(&gpu.health.confidential, |on| switch(*on))),
    ];
    let row = |(name, ask): &(&'static str, Ask)| {
        let told: Vec<Value> = gpus.iter().map(|gpu| ask(gpu)).collect();
        let source = told.iter().flatten().next()?.1.clone();
        let value = |value: Value| value.map_or(format::ABSENT.to_owned(), |(words, _)| words);
        Some(Row { name, values: told.into_iter().map(value).collect(), source })
    };
    asked.iter().filter_map(row).collect()
}

/// Whether a GPU's PCIe link is in a low-power state.
pub(crate) fn resting(gpus: &[&Gpu]) -> bool {
    let links = gpus.iter().filter_map(|gpu| gpu.health.pcie.as_ref());
    links.into_iter().any(|link| link.value.generation_most > Some(link.value.generation))
}

/// The paths between GPUs: a row for each GPU, with `X` on the diagonal; `None` for a single GPU.
pub(crate) fn paths(machine: &Machine, gpus: &[&Gpu]) -> Option<Vec<Vec<String>>> {
    let paths = &machine.interconnect.paths.as_ref()?.value;
    let word = |one: u32, other: u32| {
        if one == other {
            return "X".to_owned();
        }
        let between = (one.min(other), one.max(other));
        let path = paths.iter().find(|path| path.between == between);
        path.map_or(format::ABSENT.to_owned(), |path| match path.nvlinks {
            0 => PciePath::as_str(path.pcie).to_owned(),
            links => format!("NV{links}"),
        })
    };
    let line = |one: &&Gpu| gpus.iter().map(|other| word(one.index, other.index)).collect();
    (gpus.len() > 1).then(|| gpus.iter().map(line).collect())
}

/// Network ports and entries of the kernel's log, one sentence each.
pub(crate) fn sentences(machine: &Machine) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(modules) = &machine.interconnect.direct_modules {
        let loaded = match modules.value.as_slice() {
            [] => "none is loaded".to_owned(),
            names => format!("{} loaded", names.join(", ")),
        };
        out.push(format!("Modules of GPUDirect RDMA and GDRCopy: {loaded} ({}).", modules.source));
    }
    out.push(match &machine.xids {
        None => "The kernel's log could not be read: whether the driver wrote errors (Xid) is not known.".to_owned(),
        Some(log) if log.value.is_empty() => {
            format!("The kernel's log has no error of the driver (Xid; {}).", log.source)
        }
        Some(log) => {
            let each = |xid: &facts::Xid| format!("{} of {}, {} x", xid.number, xid.pci_bus, xid.count);
            let all: Vec<String> = log.value.iter().map(each).collect();
            format!("Errors of the driver in the kernel's log (Xid): {} ({}).", all.join("; "), log.source)
        }
    });
    out
}
