use crate::Fact;
use serde::{Deserialize, Serialize};

/// The state of one GPU's hardware: its links, its memory's errors, its clocks and its power.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuHealth {
    /// Its PCIe link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie: Option<Fact<PcieLink>>,
    /// Its NVLinks, in the driver's order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlinks: Option<Fact<Vec<NvLink>>>,
    /// The NUMA node it is attached to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<Fact<u32>>,
    /// The cores nearest to it, as the kernel lists them: `0-31,64-95`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest_cores: Option<Fact<String>>,
    /// Clock of the multiprocessors in MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_mhz: Option<Fact<u32>>,
    /// The highest clock that the multiprocessors have, in MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_mhz_most: Option<Fact<u32>>,
    /// Clock of the memory in MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mhz: Option<Fact<u32>>,
    /// NVML's names of what holds the clocks down; idleness is not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_down_by: Option<Fact<Vec<String>>>,
    /// Percent of the last sampling period in which a kernel ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_percent: Option<Fact<u32>>,
    /// Power drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_milliwatts: Option<Fact<u32>>,
    /// The power it may draw as it is set now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_cap_milliwatts: Option<Fact<u32>>,
    /// The power it may draw as it is delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_default_milliwatts: Option<Fact<u32>>,
    /// Degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub celsius: Option<Fact<u32>>,
    /// Whether its memory has error correction switched on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc: Option<Fact<bool>>,
    /// Memory errors since the driver was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc_volatile: Option<Fact<EccCounts>>,
    /// Memory errors in the life of the board.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc_aggregate: Option<Fact<EccCounts>>,
    /// Whether a page of its memory waits to be retired at the next reset (before Ampere).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retirement_pending: Option<Fact<bool>>,
    /// Rows of its memory that spare ones have replaced (since Ampere).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remapped: Option<Fact<RemappedRows>>,
    /// Whether it computes confidentially: the mode is on, in production, and takes work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidential: Option<Fact<bool>>,
}

impl GpuHealth {
    /// Whether nothing is known.
    pub fn is_blank(&self) -> bool {
        *self == Self::default()
    }
}

/// A PCIe link. An idle GPU lowers the generation to save power, never the width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieLink {
    /// Generation now.
    pub generation: u32,
    /// Lanes now.
    pub width: u32,
    /// Highest generation that the GPU and its slot both have.
    pub generation_most: Option<u32>,
    /// Most lanes that the GPU and its slot both have.
    pub width_most: Option<u32>,
}

/// One NVLink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvLink {
    /// Whether it is up.
    pub up: bool,
    /// Rate in each direction, in units of 10^6 bytes a second, where it is told.
    pub megabytes_per_second: Option<u32>,
    /// PCI address of what is at its other end, a GPU or a switch, where it is told.
    pub remote: Option<String>,
}

/// Errors of a GPU's memories.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EccCounts {
    /// Errors that were corrected.
    pub corrected: u64,
    /// Errors that were found and could not be corrected.
    pub uncorrected: u64,
}

/// What became of rows of memory with errors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemappedRows {
    /// Rows replaced for errors that were corrected.
    pub corrected: u32,
    /// Rows replaced for errors that were not.
    pub uncorrected: u32,
    /// Whether a row waits to be replaced at the next reset.
    pub pending: bool,
    /// Whether a row could not be replaced, for want of spare ones.
    pub failed: bool,
}
