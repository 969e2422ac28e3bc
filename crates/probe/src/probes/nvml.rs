//! GPUs and driver from NVML.

use super::driver_of;
use crate::Source;
use crate::nvml::{Nvml, NvmlDevice};
use facts::CompactSort;
use facts::{Fact, Gpu, GpuHealth, GpuProcess, GpuUse, GpuVendor, Machine};

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    match source.ask_nvml() {
        Nvml::Absent => {}
        Nvml::Failed { library, words } => {
            driver_of(machine).nvml_error =
                Some(Fact::new(words, format!("NVML nvmlInit_v2 ({library})")));
        }
        Nvml::Silent { library, words } => {
            machine.notes.push(format!(
                "{words}: compute capability, memory and processes of the GPUs could not be read"
            ));
            driver_of(machine).no_answer = Some(Fact::new(words, format!("NVML ({library})")));
        }
        Nvml::Answered(snapshot) => {
            if let Some(words) = &snapshot.unanswered {
                machine.notes.push(format!(
                    "{words}: NVML's other values of this GPU and the ones after it could not be read"
                ));
                let from = format!("NVML ({})", snapshot.library);
                driver_of(machine).no_answer = Some(Fact::new(words.clone(), from));
            }
            note_refused(machine, "the driver", &snapshot.refused);
            let shared = machine.memory.total_bytes.clone();
            let driver = driver_of(machine);
            driver.cuda_limit = snapshot
                .cuda
                .map(|version| Fact::new(version, "NVML nvmlSystemGetCudaDriverVersion_v2"));
            // In a container /sys and /proc may be hidden while NVML still reports the loaded module.
            if driver.kernel_module.is_none() {
                driver.kernel_module = snapshot
                    .driver
                    .map(|version| Fact::new(version, "NVML nvmlSystemGetDriverVersion"));
            }
            if !snapshot.pairs.is_empty() {
                let paths = snapshot.pairs.iter().map(|pair| pair.path(&snapshot.gpus)).collect();
                machine.interconnect.paths = Some(Fact::new(
                    paths,
                    "NVML nvmlDeviceGetTopologyCommonAncestor, nvmlDeviceGetP2PStatus",
                ));
            }
            for (index, device) in (0..).zip(snapshot.gpus) {
                match &device.error {
                    Some(words) => machine.notes.push(format!(
                        "GPU {index} does not answer (NVML nvmlDeviceGetHandleByIndex: {words})"
                    )),
                    None => {
                        if let Some(words) = &device.processes_error {
                            machine.notes.push(format!(
                                "the processes on GPU {index} cannot be listed (NVML \
                                 nvmlDeviceGetComputeRunningProcesses: {words})"
                            ));
                        }
                        note_refused(machine, &format!("GPU {index}"), &device.refused);
                        list_processes(machine, index, &device);
                        machine.gpus.push(gpu(index, device, shared.as_ref()));
                    }
                }
            }
        }
    }
}

/// Adds a note that lists the refused queries.
fn note_refused(machine: &mut Machine, of: &str, calls: &[String]) {
    if !calls.is_empty() {
        machine.notes.push(format!("NVML refused queries of {of}: {}", calls.join(", ")));
    }
}

/// Adds NVML's processes; another probe adds the system's facts about them.
fn list_processes(machine: &mut Machine, gpu: u32, device: &NvmlDevice) {
    for listed in &device.processes {
        let known = machine.gpu_processes.iter().position(|process| process.pid == listed.pid);
        let place = known.unwrap_or_else(|| {
            machine.gpu_processes.push(GpuProcess { pid: listed.pid, ..GpuProcess::default() });
            machine.gpu_processes.len() - 1
        });
        machine.gpu_processes[place].uses.push(GpuUse {
            gpu,
            bytes: listed.bytes,
            kind: listed.kind.clone(),
        });
    }
    machine.gpu_processes.compact_sort_by_key(|process| process.pid);
}

fn gpu(index: u32, device: NvmlDevice, shared: Option<&Fact<u64>>) -> Gpu {
    const MEMORY: &str = "NVML nvmlDeviceGetMemoryInfo_v2";
    let memory_total_bytes = match (&device.memory_error, device.memory_total) {
        (None, Some(bytes)) => Some(Fact::new(bytes, MEMORY)),
        // GB10 and Jetson have no dedicated memory: NVML refuses, and the host's memory is the GPU's.
        (Some(words), _) if words == "Not Supported" => shared.map(|total| {
            let source = format!("{} (shared with the host; {MEMORY}: {words})", total.source);
            Fact::new(total.value, source)
        }),
        _ => None,
    };
    Gpu {
        index,
        vendor: GpuVendor::Nvidia,
        health: health(&device),
        name: match device.name {
            Some(name) => Fact::new(name, "NVML nvmlDeviceGetName"),
            None => Fact::new(
                "NVIDIA GPU without a name".to_string(),
                "NVML nvmlDeviceGetName returned none",
            ),
        },
        uuid: device.uuid,
        compute_capability: device
            .compute_capability
            .map(|version| Fact::new(version, "NVML nvmlDeviceGetCudaComputeCapability")),
        memory_total_bytes,
        memory_used_bytes: device.memory_used.map(|bytes| Fact::new(bytes, MEMORY)),
        pci_bus: device.pci_bus,
        mig: device.mig,
        persistence: device.persistence,
    }
}

fn health(device: &NvmlDevice) -> GpuHealth {
    /// A value with the name of its call.
    fn fact<T>(value: Option<T>, call: &str) -> Option<Fact<T>> {
        value.map(|value| Fact::new(value, format!("NVML {call}")))
    }
    let it = device.health.clone();
    let links = (!it.nvlinks.is_empty()).then_some(it.nvlinks);
    GpuHealth {
        pcie: fact(it.pcie, "nvmlDeviceGetCurrPcieLinkGeneration"),
        nvlinks: fact(links, "nvmlDeviceGetNvLinkState"),
        numa_node: None,
        nearest_cores: None,
        sm_mhz: fact(device.sm_mhz, "nvmlDeviceGetClockInfo"),
        sm_mhz_most: fact(device.sm_mhz_most, "nvmlDeviceGetMaxClockInfo"),
        memory_mhz: fact(device.memory_mhz, "nvmlDeviceGetClockInfo"),
        held_down_by: fact(
            device.held_down_by.clone(),
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        ),
        busy_percent: fact(it.busy_percent, "nvmlDeviceGetUtilizationRates"),
        power_milliwatts: fact(it.power_milliwatts, "nvmlDeviceGetPowerUsage"),
        power_cap_milliwatts: fact(it.power_cap_milliwatts, "nvmlDeviceGetEnforcedPowerLimit"),
        power_default_milliwatts: fact(
            it.power_default_milliwatts,
            "nvmlDeviceGetPowerManagementDefaultLimit",
        ),
        celsius: fact(device.celsius, "nvmlDeviceGetTemperature"),
        ecc: fact(it.ecc, "nvmlDeviceGetEccMode"),
        ecc_volatile: fact(it.ecc_volatile, "nvmlDeviceGetTotalEccErrors"),
        ecc_aggregate: fact(it.ecc_aggregate, "nvmlDeviceGetTotalEccErrors"),
        retirement_pending: fact(it.retirement_pending, "nvmlDeviceGetRetiredPagesPendingStatus"),
        remapped: fact(it.remapped, "nvmlDeviceGetFieldValues NVML_FI_DEV_REMAPPED"),
        confidential: fact(it.confidential, "nvmlSystemGetConfComputeState"),
    }
}
