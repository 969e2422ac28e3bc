use crate::Fact;
use serde::{Deserialize, Serialize};

/// The connections between a machine's GPUs, and to other machines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interconnect {
    /// The path between each pair of GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paths: Option<Fact<Vec<GpuPath>>>,
    /// InfiniBand and RoCE ports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<RdmaPort>,
    /// Kernel modules that give network cards and programs access to GPU memory: `nvidia_peermem`, `gdrdrv`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct_modules: Option<Fact<Vec<String>>>,
    /// The domain types of the IOMMU groups of GPUs: `DMA`, `DMA-FQ`, `identity`; empty if no GPU is in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iommu: Option<Fact<Vec<String>>>,
    /// PCI bridges above GPUs whose Access Control Services redirect peer-to-peer requests to the root complex; `None`
    /// if their configuration space cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acs_bridges: Option<Fact<Vec<String>>>,
}

impl Interconnect {
    /// Whether every field has its default.
    pub fn is_blank(&self) -> bool {
        *self == Self::default()
    }
}

/// The path between two GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuPath {
    /// Both GPUs by the driver's indices, the lower one first.
    pub between: (u32, u32),
    /// The path between them on PCIe.
    pub pcie: PciePath,
    /// Number of NVLinks between them, direct or through switches.
    pub nvlinks: u32,
}

/// The components of a PCIe path, in the terms of `nvidia-smi topo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PciePath {
    /// Both are on one board.
    Psb,
    /// At most one PCIe bridge.
    Pix,
    /// Several PCIe bridges, not the host's.
    Pxb,
    /// The PCIe host bridge.
    Phb,
    /// Host bridges of one NUMA node.
    Node,
    /// The link between NUMA nodes.
    Sys,
}

impl PciePath {
    /// The abbreviation of `nvidia-smi topo -m`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Psb => "PSB",
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
        }
    }
}

/// A port of an InfiniBand or RoCE card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RdmaPort {
    /// Card and port: `mlx5_0/1`.
    pub name: String,
    /// `InfiniBand`, or `Ethernet` for RoCE.
    pub link_layer: Option<String>,
    /// Its state according to the kernel: `ACTIVE`, `DOWN`, `INIT`.
    pub state: String,
    /// Its rate according to the kernel: `400 Gb/sec (4X NDR)`.
    pub rate: Option<String>,
    /// The card's NUMA node.
    pub numa_node: Option<u32>,
    /// The file it was read from.
    pub source: String,
}

/// A driver problem reported in the kernel log without an Xid number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverTrouble {
    /// The GPU requires the open kernel modules, and the proprietary ones are installed.
    OpenModulesRequired,
    /// A PCI BAR of the GPU has no address space or too little.
    Bar,
    /// The firmware of the GPU System Processor (GSP) is missing or does not start.
    Firmware,
    /// The driver's release does not support the GPU.
    Unsupported,
    /// The driver could not initialize the GPU, without a stated reason.
    Initialization,
}

/// A driver line in the kernel log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverLine {
    /// The problem.
    pub trouble: DriverTrouble,
    /// The GPU's PCI address, if the line contains it.
    pub pci_bus: Option<String>,
    /// The first such line, without its time stamp.
    pub words: String,
    /// Number of such lines.
    pub count: u32,
}

/// An Xid error that NVIDIA's driver wrote to the kernel log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xid {
    /// The GPU's PCI address as in the log: `0000:3b:00`.
    pub pci_bus: String,
    /// The Xid number.
    pub number: u32,
    /// The rest of the first such line.
    pub words: String,
    /// Number of lines with this number for this GPU.
    pub count: u32,
}
