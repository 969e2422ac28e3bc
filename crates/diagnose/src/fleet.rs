//! Compares the ranks of a fleet: files, output bits and speed that differ from the other ranks'.

use crate::gpus::{GpuRows, gpus};
use facts::{
    BackendKind, DoctorReport, FleetDevice, FleetReport, GpuKind, RankFinding, RankPart, SCHEMA,
    Severity, StackDifference, StackFile, StackForm, StackReport,
};
use facts::{CompactCollect, CompactSort};
use std::collections::{BTreeMap, BTreeSet};

/// The results of one rank.
#[derive(Debug, Clone)]
pub struct RankRows<'a> {
    /// The rank and its metadata; `fleet` fills in the counts of rows.
    pub part: RankPart,
    /// Its GPUs and its processor, numbered as by the driver.
    pub devices: Vec<GpuRows<'a>>,
    /// The files of its software stack.
    pub stack: Option<&'a StackReport>,
    /// Its own findings.
    pub doctor: Option<&'a DoctorReport>,
}

/// Compares the ranks with each other.
pub fn fleet(launcher: &str, ranks: &[RankRows<'_>]) -> FleetReport {
    let mut devices = Vec::new();
    let mut rows = Vec::new();
    for rank in ranks {
        for device in &rank.devices {
            let RankPart { rank, host, .. } = &rank.part;
            let (backend, name) = (device.backend, device.part.name.clone());
            let gpu = (backend == BackendKind::Cuda).then_some(device.part.index);
            devices.push(FleetDevice { rank: *rank, host: host.clone(), backend, gpu, name });
            let mut device = device.clone();
            device.part.index = rows.len() as u32;
            rows.push(device);
        }
    }
    let side_by_side = gpus(&rows);
    let parts = ranks.iter().map(|rank| {
        let mine =
            side_by_side.gpus.iter().zip(&devices).filter(|(_, it)| it.rank == rank.part.rank);
        mine.fold(rank.part.clone(), |part, (device, _)| RankPart {
            passed: part.passed + device.passed,
            failed: part.failed + device.failed,
            timed: part.timed + device.timed,
            ..part
        })
    });
    let (stack_compared, stack) = stacks(ranks);
    let mut fleet = FleetReport {
        schema: SCHEMA,
        launcher: launcher.to_owned(),
        ranks: parts.collect(),
        kinds: side_by_side.kinds,
        devices,
        stack_compared,
        stack,
        findings: Vec::new(),
        found: found(ranks),
    };
    fleet.findings = crate::run_on_fleet(&fleet);
    fleet
}

/// The name of a device by its index in the comparison: `GPU 1 of rank 3 (node-b)`.
pub(crate) fn device(fleet: &FleetReport, at: u32) -> String {
    let Some(FleetDevice { rank, host, gpu, .. }) = fleet.devices.get(at as usize) else {
        return format!("device {at}");
    };
    let what = gpu.map_or("the processor".to_owned(), |gpu| format!("GPU {gpu}"));
    format!("{what} of rank {rank} ({host})")
}

/// The backend of the devices of a kind.
pub(crate) fn backend_of_kind(fleet: &FleetReport, kind: &GpuKind) -> BackendKind {
    let first = kind.gpus.first().and_then(|at| fleet.devices.get(*at as usize));
    first.map_or(BackendKind::Cpu, |device| device.backend)
}

/// The number of compared files, and the files that differ between the ranks whose stacks are known.
fn stacks(ranks: &[RankRows<'_>]) -> (u32, Vec<StackDifference>) {
    let known: Vec<(u32, BTreeMap<&str, &StackFile>)> = ranks
        .iter()
        .filter_map(|rank| {
            let files = rank.stack?.files.iter().map(|file| (file.what.as_str(), file));
            Some((rank.part.rank, files.collect()))
        })
        .collect();
    let names: BTreeSet<&str> =
        known.iter().flat_map(|(_, files)| files.keys().copied()).compact_set();
    let (mut compared, mut differing) = (0, Vec::new());
    for what in names {
        // A rank that had no time to read a file is left out of the file's comparison.
        let read = |file: Option<&&StackFile>| file.is_none_or(|file| file.sha256.is_some());
        let here = known.iter().filter(|(_, files)| read(files.get(what)));
        let here: Vec<(u32, Option<&StackFile>)> =
            here.map(|(rank, files)| (*rank, files.get(what).copied())).collect();
        if here.len() < 2 {
            continue;
        }
        compared += 1;
        let mut forms: BTreeMap<Option<&str>, StackForm> = BTreeMap::new();
        for (rank, file) in &here {
            let hash = file.and_then(|file| file.sha256.as_deref());
            let form = || StackForm { file: file.cloned(), ranks: Vec::new() };
            forms.entry(hash).or_insert_with(form).ranks.push(*rank);
        }
        if forms.len() < 2 {
            continue;
        }
        let usual = forms.values().position(|form| 2 * form.ranks.len() > here.len());
        let others =
            forms.values().enumerate().filter(|(at, _)| usual.is_some_and(|usual| usual != *at));
        let mut odd: Vec<u32> = others.flat_map(|(_, form)| form.ranks.iter().copied()).collect();
        odd.compact_sort();
        let forms = forms.into_values().collect();
        differing.push(StackDifference { what: what.to_owned(), odd, forms });
    }
    (compared, differing)
}

/// The ranks' own errors and warnings, grouped by rule, worst first.
fn found(ranks: &[RankRows<'_>]) -> Vec<RankFinding> {
    let mut all: BTreeMap<(Severity, &str), BTreeMap<u32, String>> = BTreeMap::new();
    for rank in ranks {
        let findings = rank.doctor.into_iter().flat_map(|doctor| &doctor.findings);
        for finding in findings.filter(|finding| finding.severity != Severity::Info) {
            let titles = all.entry((finding.severity, &finding.rule)).or_default();
            // Only the first finding of a rule on a rank is listed.
            titles.entry(rank.part.rank).or_insert_with(|| finding.title.clone());
        }
    }
    all.into_iter()
        .map(|((severity, rule), titles)| RankFinding { severity, rule: rule.to_owned(), titles })
        .collect()
}

#[cfg(test)]
mod tests;
