//! The probes of a machine, one per file.

use crate::Source;
use facts::{Driver, Machine};

pub(crate) mod access;
pub(crate) mod apple_gpu;
pub(crate) mod cpu;
pub(crate) mod driver;
pub(crate) mod driver_library;
pub(crate) mod fabric;
pub(crate) mod gpu_nodes;
pub(crate) mod interconnect;
pub(crate) mod kernel_log;
pub(crate) mod libc;
pub(crate) mod libraries;
pub(crate) mod memory;
pub(crate) mod nvidia_smi;
pub(crate) mod nvml;
pub(crate) mod os;
pub(crate) mod processes;
pub(crate) mod tegra;
pub(crate) mod toolkits;
pub(crate) mod virtualisation;

/// One probe: reads a few related facts from a source into a machine. It never fails; an unreadable fact is absent,
/// with a note if users need it.
pub struct Probe {
    /// Name of the probe and of its file.
    pub name: &'static str,
    /// The source that it reads.
    pub reads: &'static str,
    pub(crate) run: fn(&Source, &mut Machine),
}

/// Every probe, in the order of execution: later ones may use earlier facts.
#[rustfmt::skip]
pub const PROBES: &[Probe] = &[
    Probe { name: "os", reads: "/proc/sys/kernel, /etc/os-release; uname and sw_vers on macOS", run: os::run },
    Probe { name: "libc", reads: "the C library's own banner", run: libc::run },
    Probe { name: "cpu", reads: "/proc/cpuinfo, /sys/devices/system/cpu, affinity and cpu control group; sysctl on macOS", run: cpu::run },
    Probe { name: "memory", reads: "/proc/meminfo and the memory control group; sysctl on macOS", run: memory::run },
    Probe { name: "driver", reads: "/sys/module/nvidia/version, /proc/driver/nvidia/version", run: driver::run },
    Probe { name: "driver_library", reads: "the version in libnvidia-ml's file name, or libcuda's, and which libcuda the loader finds first", run: driver_library::run },
    Probe { name: "fabric", reads: "/proc/driver/nvidia-nvswitch/devices and, where there are any, /proc/PID/comm", run: fabric::run },
    Probe { name: "nvml", reads: "NVML, loaded at run time", run: nvml::run },
    Probe { name: "nvidia_smi", reads: "nvidia-smi, only where there is no NVML", run: nvidia_smi::run },
    Probe { name: "gpu_nodes", reads: "/proc/driver/nvidia/gpus, where nothing above listed a GPU", run: gpu_nodes::run },
    Probe { name: "interconnect", reads: "/sys/bus/pci/devices of the GPUs (NUMA node, nearest cores), /sys/devices/system/node, /sys/class/infiniband, /sys/module, /sys/kernel/iommu_groups", run: interconnect::run },
    Probe { name: "kernel_log", reads: "dmesg, only where an NVIDIA driver is", run: kernel_log::run },
    Probe { name: "tegra", reads: "/proc/device-tree and /etc/nv_tegra_release (Jetson)", run: tegra::run },
    Probe { name: "apple_gpu", reads: "system_profiler SPDisplaysDataType on macOS", run: apple_gpu::run },
    Probe { name: "toolkits", reads: "CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda*: version.json, version.txt, cuda.h; host compilers on PATH, CC, CXX", run: toolkits::run },
    Probe { name: "libraries", reads: "NVRTC, cuBLASLt, cuDNN and NCCL files where the loader and toolkits have them", run: libraries::run },
    Probe { name: "virtualisation", reads: "container marks, control groups, DMI, the hypervisor flag, WSL", run: virtualisation::run },
    Probe { name: "access", reads: "/sys/bus/pci, /dev/nvidia*, /lib/modules, Secure Boot's variable, the mount of /dev/shm, MIG partitions (by nvidia-smi -L where one is named), CUDA_VISIBLE_DEVICES", run: access::run },
    Probe { name: "processes", reads: "/proc/PID of the processes NVML lists: stat, status, cmdline, wchan, cgroup", run: processes::run },
];

/// The driver's facts, created on the first sign of a driver.
pub(crate) fn driver_of(machine: &mut Machine) -> &mut Driver {
    machine.driver.get_or_insert_default()
}

#[cfg(test)]
mod tests {
    use super::PROBES;

    #[test]
    fn folder_has_only_the_listed_files() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/probes");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_string())
            .collect();
        let mut listed: Vec<String> = PROBES.iter().map(|probe| probe.name.to_string()).collect();
        files.sort();
        listed.sort();
        assert_eq!(files, listed);
        assert!(PROBES.iter().all(|probe| !probe.reads.is_empty()));
    }
}
