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
    /// The NUMA node it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<Fact<u32>>,
    /// The nearest cores in the kernel's format: `0-31,64-95`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest_cores: Option<Fact<String>>,
    /// SM clock in MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_mhz: Option<Fact<u32>>,
    /// Maximum SM clock in MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_mhz_most: Option<Fact<u32>>,
    /// Memory clock in MHz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mhz: Option<Fact<u32>>,
    /// NVML's reasons for limited clocks; idleness is not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_down_by: Option<Fact<Vec<String>>>,
    /// Percent of the last sampling period in which a kernel ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_percent: Option<Fact<u32>>,
    /// Power drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_milliwatts: Option<Fact<u32>>,
    /// The current power limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_cap_milliwatts: Option<Fact<u32>>,
    /// The default power limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_default_milliwatts: Option<Fact<u32>>,
    /// Degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub celsius: Option<Fact<u32>>,
    /// Whether ECC is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc: Option<Fact<bool>>,
    /// Memory errors since the driver was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc_volatile: Option<Fact<EccCounts>>,
    /// Memory errors in the life of the board.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc_aggregate: Option<Fact<EccCounts>>,
    /// Whether a memory page will be retired at the next reset (before Ampere).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retirement_pending: Option<Fact<bool>>,
    /// Remapped memory rows (since Ampere).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remapped: Option<Fact<RemappedRows>>,
    /// Whether confidential computing is on, in production mode, and ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidential: Option<Fact<bool>>,
}

impl GpuHealth {
    /// Whether nothing is known.
    pub fn is_blank(&self) -> bool {
        *self == Self::default()
    }
}

/// A PCIe link. An idle GPU lowers the generation to save power, but not the width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieLink {
    /// Current generation.
    pub generation: u32,
    /// Current number of lanes.
    pub width: u32,
    /// Maximum generation that both the GPU and its slot support.
    pub generation_most: Option<u32>,
    /// Maximum number of lanes that both the GPU and its slot support.
    pub width_most: Option<u32>,
}

/// One NVLink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvLink {
    /// Whether it is up.
    pub up: bool,
    /// Rate in each direction, in 10^6 bytes per second, if reported.
    pub megabytes_per_second: Option<u32>,
    /// PCI address of the GPU or switch at its other end, if reported.
    pub remote: Option<String>,
}

/// Errors of a GPU's memories.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EccCounts {
    /// Errors that were corrected.
    pub corrected: u64,
    /// Errors that could not be corrected.
    pub uncorrected: u64,
}

/// Remapping of memory rows with errors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemappedRows {
    /// Rows remapped because of corrected errors.
    pub corrected: u32,
    /// Rows remapped because of uncorrected errors.
    pub uncorrected: u32,
    /// Whether a row will be remapped at the next reset.
    pub pending: bool,
    /// Whether a row could not be remapped for lack of spare rows.
    pub failed: bool,
}
