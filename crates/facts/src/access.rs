use crate::Fact;
use serde::{Deserialize, Serialize};

/// What stands between programs and the machine's NVIDIA GPUs, beside the driver itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuAccess {
    /// NVIDIA's display controllers on the PCI bus; `None` where the bus cannot be read.
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
    /// The size of /dev/shm in bytes, where its mount limits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_memory_bytes: Option<Fact<u64>>,
    /// CUDA_VISIBLE_DEVICES as it is set, which may be to nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visible_devices: Option<Fact<String>>,
    /// How many MIG partitions (GPU instances) the driver lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_instances: Option<Fact<u32>>,
    /// The UUIDs of all MIG partitions, asked for where CUDA_VISIBLE_DEVICES names one: `MIG-377e0049-...`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_uuids: Option<Fact<Vec<String>>>,
}

/// One display controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciGpu {
    /// Its place on the bus: `0000:01:00.0`.
    pub bus: String,
    /// Its device number: `0x2330`.
    pub device: String,
    /// The kernel driver that has it: `nvidia`, `nouveau`, `vfio-pci`; `None` where none does.
    pub driver: Option<String>,
}

/// One device file.
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
