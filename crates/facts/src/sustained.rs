use crate::CompactSort;
use serde::{Deserialize, Serialize};

/// Sustained matrix products on all GPUs at once.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SustainedReport {
    /// Rows, columns and inner dimension of the product, its type and library.
    pub product: String,
    /// Requested seconds.
    pub seconds: f64,
    /// Each GPU.
    pub gpus: Vec<GpuLoad>,
    /// Why it did not finish, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broke: Option<String>,
}

/// One GPU under load.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuLoad {
    /// The driver's index.
    pub gpu: u32,
    /// Product name.
    pub name: String,
    /// Products that were computed.
    pub products: u64,
    /// Its rate over time.
    pub rates: Vec<LoadRate>,
    /// Its state over time.
    pub states: Vec<LoadState>,
    /// Why its rate is invalid, in one sentence: the product was wrong, before or after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrong: Option<String>,
}

impl GpuLoad {
    /// The median rate of the second half, when the GPU is warm, in 1e12 operations per second.
    pub fn warm_tflops(&self) -> Option<f64> {
        let mut warm: Vec<f64> =
            self.rates[self.rates.len() / 2..].iter().map(|rate| rate.tflops).collect();
        warm.compact_sort_by(f64::total_cmp);
        warm.get(warm.len() / 2).copied()
    }
}

/// A rate over an interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LoadRate {
    /// Seconds from the start of the load to the end of the interval.
    pub seconds: f64,
    /// 1e12 operations per second.
    pub tflops: f64,
}

/// The state of a GPU at one moment of the load, from NVML.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadState {
    /// Seconds since the start of the load.
    pub seconds: f64,
    /// Power drawn.
    pub watts: Option<f64>,
    /// SM clock in MHz.
    pub sm_mhz: Option<u32>,
    /// Degrees Celsius.
    pub celsius: Option<u32>,
    /// NVML's reasons for limited clocks; idleness is not counted.
    pub held_down_by: Vec<String>,
}
