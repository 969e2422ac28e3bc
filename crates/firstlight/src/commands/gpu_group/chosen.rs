//! Selects the GPUs of a command.
//!
//! This process opens the first one. If `--gpu` selects others, the command restarts itself with `CUDA_VISIBLE_DEVICES`
//! set to their UUIDs: a started driver does not change its GPUs, and child processes, Python included, then see the
//! same GPUs in the same order.

use crate::cli::DriverTimeout;
use crate::commands::ask_nvml::live;
use crate::failure::Failure;
use crate::own_program::restart_with;
use facts::{Gpu, GpuVendor, Machine};
use ops_cuda::is_partition;
use probe::ProbeOptions;

/// The variable that hides GPUs from a process.
pub(crate) const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// A working GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkingGpu {
    /// Its index in nvidia-smi.
    pub(crate) index: u32,
    pub(crate) uuid: String,
    pub(crate) name: String,
}

/// Makes this process see only the GPUs of `--gpu`, in that order.
///
/// # Errors
/// One of them does not exist, or the parent process has hidden it.
pub(crate) fn only_named(numbers: &[u32], waiting: &DriverTimeout) -> anyhow::Result<()> {
    if numbers.is_empty() {
        return Ok(());
    }
    let source = live(waiting);
    let machine = probe::machine(&ProbeOptions { source, site_packages: Vec::new() });
    let visible = std::env::var(VISIBLE).ok();
    let wanted = named(numbers, &machine.gpus, visible.as_deref())?;
    if visible.as_ref() == Some(&wanted) { Ok(()) } else { restart_with(VISIBLE, &wanted) }
}

/// The UUIDs of the visible GPUs, from NVML without starting CUDA.
pub(crate) fn visible(waiting: &DriverTimeout) -> Vec<String> {
    let source = live(waiting);
    let machine = probe::machine(&ProbeOptions { source, site_packages: Vec::new() });
    let setting = std::env::var(VISIBLE).ok();
    let nvidia = machine.gpus.into_iter().filter(|gpu| gpu.vendor == GpuVendor::Nvidia);
    let told = nvidia.filter_map(|gpu| Some((gpu.index, gpu.uuid?)));
    told.filter(|(index, uuid)| setting.as_deref().is_none_or(|seen| shows(seen, *index, uuid)))
        .map(|(_, uuid)| uuid)
        .collect()
}

/// The UUIDs of the GPUs with these indices, for the variable.
fn named(numbers: &[u32], gpus: &[Gpu], visible: Option<&str>) -> anyhow::Result<String> {
    let here: Vec<(u32, &str)> = gpus
        .iter()
        .filter(|gpu| gpu.vendor == GpuVendor::Nvidia)
        .filter_map(|gpu| Some((gpu.index, gpu.uuid.as_deref()?)))
        .collect();
    let mut wanted: Vec<&str> = Vec::new();
    for number in numbers {
        let Some((_, uuid)) = here.iter().find(|(index, _)| index == number) else {
            let what = match here.as_slice() {
                [] => format!("--gpu {number}: no NVIDIA GPU is visible here"),
                [(one, _)] => format!("there is no GPU {number} here, NVML lists only GPU {one}"),
                some => {
                    let all: Vec<String> =
                        some.iter().map(|(index, _)| index.to_string()).collect();
                    format!("there is no GPU {number} here, NVML lists {}", all.join(", "))
                }
            };
            return Err(Failure::hinted(
                what,
                "`firstlight doctor` shows the GPUs, and what is wrong with the driver",
            ));
        };
        if let Some(part) = visible.filter(|visible| visible.trim().starts_with("MIG-")) {
            let what =
                format!("{VISIBLE} selects a MIG partition ({part}), --gpu selects whole GPUs");
            let hint = format!(
                "leave --gpu out: the partition is all that this process sees; or unset {VISIBLE}"
            );
            return Err(Failure::hinted(what, hint));
        }
        if visible.is_some_and(|visible| !shows(visible, *number, uuid)) {
            let what = format!("GPU {number} is hidden from this process by {VISIBLE}");
            return Err(Failure::hinted(what, format!("unset {VISIBLE}, or leave --gpu out")));
        }
        if !wanted.contains(uuid) {
            wanted.push(uuid);
        }
    }
    Ok(wanted.join(","))
}

/// Whether the variable shows a GPU: by its index, or by its UUID or a prefix of it.
fn shows(visible: &str, number: u32, uuid: &str) -> bool {
    visible.split(',').map(str::trim).any(|entry| match entry.parse::<u32>() {
        Ok(listed) => listed == number,
        Err(_) => !entry.is_empty() && uuid.starts_with(entry),
    })
}

/// The visible GPUs that can run kernels, the one that it opens first; none if the driver cannot be used.
pub(crate) fn working(machine: &Machine) -> Vec<WorkingGpu> {
    let seen = ops_cuda::visible_gpus().unwrap_or_default();
    let index = |at: usize, uuid: &str, name: &str| {
        let known = machine.gpus.iter().find(|gpu| gpu.uuid.as_deref() == Some(uuid));
        // NVML lists the board of a MIG partition, which is known only if a single board is partitioned.
        let mut split = machine.gpus.iter().filter(|gpu| gpu.mig == Some(true));
        let board = split.next().filter(|_| is_partition(name) && split.next().is_none());
        known.or(board).map_or(at as u32, |gpu| gpu.index)
    };
    let seen = seen.into_iter().enumerate().filter(|(_, gpu)| gpu.unusable.is_none());
    seen.map(|(at, gpu)| WorkingGpu {
        index: index(at, &gpu.uuid, &gpu.name),
        uuid: gpu.uuid,
        name: gpu.name,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use facts::{Fact, GpuHealth};

    fn gpu(index: u32) -> Gpu {
        Gpu {
            index,
            vendor: GpuVendor::Nvidia,
            name: Fact::new("NVIDIA H200".into(), "NVML"),
            uuid: Some(format!("GPU-{index}a")),
            compute_capability: None,
            memory_total_bytes: None,
            memory_used_bytes: None,
            pci_bus: None,
            mig: None,
            persistence: None,
            health: GpuHealth::default(),
        }
    }

    #[test]
    fn gpus_are_selected_by_index_and_passed_by_uuid() {
        let check =
            |numbers: &[u32], gpus: u32, visible: Option<&str>, expect: Result<&str, &str>| {
                let gpus: Vec<Gpu> = (0..gpus).map(gpu).collect();
                let got = named(numbers, &gpus, visible).map_err(|error| error.to_string());
                assert_eq!(
                    got,
                    expect.map(str::to_owned).map_err(str::to_owned),
                    "{numbers:?} {visible:?}"
                );
            };
        check(&[0, 1], 2, None, Ok("GPU-0a,GPU-1a"));
        check(&[1, 0, 1], 2, None, Ok("GPU-1a,GPU-0a"));
        check(&[1], 2, Some("GPU-1a"), Ok("GPU-1a"));
        check(&[1], 2, Some("0, 1"), Ok("GPU-1a"));
        check(&[1], 2, Some("GPU-0a,GPU-1"), Ok("GPU-1a"));
        let hidden = Err("GPU 1 is hidden from this process by CUDA_VISIBLE_DEVICES");
        check(&[1], 2, Some("0"), hidden);
        check(&[1], 2, Some("GPU-0a"), hidden);
        check(&[1], 2, Some(""), hidden);
        let partition =
            "CUDA_VISIBLE_DEVICES selects a MIG partition (MIG-77e), --gpu selects whole GPUs";
        check(&[1], 2, Some("MIG-77e"), Err(partition));
        check(&[5], 2, None, Err("there is no GPU 5 here, NVML lists 0, 1"));
        check(&[5], 1, None, Err("there is no GPU 5 here, NVML lists only GPU 0"));
        check(&[0], 0, None, Err("--gpu 0: no NVIDIA GPU is visible here"));
    }
}
