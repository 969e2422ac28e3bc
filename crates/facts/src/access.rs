use crate::Fact;
use serde::{Deserialize, Serialize};

/// Access to the machine's NVIDIA GPUs: PCI devices, device files, kernel module and the variables that hide GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuAccess {
    /// NVIDIA's display controllers on the PCI bus; `None` if the bus cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci: Option<Fact<Vec<PciGpu>>>,
    /// The driver's device files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<DeviceNode>,
    /// The kernel module `nvidia` that is installed for the running kernel, loaded or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module_file: Option<Fact<String>>,
    /// Whether UEFI Secure Boot is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secure_boot: Option<Fact<bool>>,
    /// The size of /dev/shm in bytes, if its mount limits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_memory_bytes: Option<Fact<u64>>,
    /// CUDA_VISIBLE_DEVICES as set, possibly empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visible_devices: Option<Fact<String>>,
    /// Number of MIG partitions (GPU instances) that the driver lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_instances: Option<Fact<u32>>,
    /// The UUIDs of all MIG partitions, read if CUDA_VISIBLE_DEVICES names one: `MIG-377e0049-...`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_uuids: Option<Fact<Vec<String>>>,
}

/// One NVIDIA display controller on the PCI bus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciGpu {
    /// Its bus address: `0000:01:00.0`.
    pub bus: String,
    /// Its device number: `0x2330`.
    pub device: String,
    /// The kernel driver bound to it: `nvidia`, `nouveau`, `vfio-pci`; `None` if there is none.
    pub driver: Option<String>,
}

/// One device file of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNode {
    /// The file: `/dev/nvidiactl`.
    pub path: String,
    /// Its permission bits.
    pub mode: u32,
    /// The name or number of its group.
    pub group: String,
    /// Whether this process may read and write it, by owner, group and mode.
    pub opens: bool,
}
