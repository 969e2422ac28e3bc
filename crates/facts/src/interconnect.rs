use crate::Fact;
use serde::{Deserialize, Serialize};

/// What joins the GPUs of a machine, and what joins them to others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interconnect {
    /// The path between each pair of GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paths: Option<Fact<Vec<GpuPath>>>,
    /// InfiniBand and RoCE ports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<RdmaPort>,
    /// Kernel modules that let network cards and programs reach GPU memory: `nvidia_peermem`, `gdrdrv`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct_modules: Option<Fact<Vec<String>>>,
    /// The domain types of the IOMMU groups that GPUs are in: `DMA`, `DMA-FQ`, `identity`; empty where no GPU is in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iommu: Option<Fact<Vec<String>>>,
    /// PCI bridges above GPUs whose Access Control Services redirect peer-to-peer requests to the root complex; `None` where their
    /// configuration space cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acs_bridges: Option<Fact<Vec<String>>>,
}

impl Interconnect {
    /// Whether nothing is known.
    pub fn is_blank(&self) -> bool {
        *self == Self::default()
    }
}

/// The path between two GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuPath {
    /// Both GPUs by the driver's indices, the lower one first.
    pub between: (u32, u32),
    /// What lies between them on PCIe.
    pub pcie: PciePath,
    /// NVLinks that join them, directly or through switches.
    pub nvlinks: u32,
}

/// What a PCIe path crosses, in the words of `nvidia-smi topo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PciePath {
    /// Both are on one board.
    Psb,
    /// At most one PCIe bridge.
    Pix,
    /// Several PCIe bridges, not the host's.
    Pxb,
    /// The host's PCIe bridge.
    Phb,
    /// Host bridges of one NUMA node.
    Node,
    /// The link between NUMA nodes.
    Sys,
}

impl PciePath {
    /// The word of `nvidia-smi topo -m`.
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
    /// The kernel's word: `ACTIVE`, `DOWN`, `INIT`.
    pub state: String,
    /// The kernel's words: `400 Gb/sec (4X NDR)`.
    pub rate: Option<String>,
    /// The NUMA node the card is attached to.
    pub numa_node: Option<u32>,
    /// Where it was read.
    pub source: String,
}

/// What a line of NVIDIA's driver without an Xid number reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverTrouble {
    /// The GPU runs with the open kernel modules alone, and the proprietary ones are installed.
    OpenModulesRequired,
    /// A PCI BAR of the GPU has no or too little address space.
    Bar,
    /// The firmware of the GPU System Processor (GSP) is missing or does not start.
    Firmware,
    /// The driver's release does not support the GPU.
    Unsupported,
    /// The driver could not initialize the GPU, for a reason that the line does not state.
    Initialization,
}

/// One such line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverLine {
    /// What it reports.
    pub trouble: DriverTrouble,
    /// The GPU's PCI address, where the line has it.
    pub pci_bus: Option<String>,
    /// The first such line, without its time.
    pub words: String,
    /// How many there are.
    pub count: u32,
}

/// One error that NVIDIA's driver wrote into the kernel's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xid {
    /// The GPU's PCI address as the log has it: `0000:3b:00`.
    pub pci_bus: String,
    /// NVIDIA's number of the error.
    pub number: u32,
    /// The rest of the first such line.
    pub words: String,
    /// How many lines of this number are there for this GPU.
    pub count: u32,
}
