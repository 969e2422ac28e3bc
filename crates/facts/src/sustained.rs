use crate::CompactSort;
use serde::{Deserialize, Serialize};

/// A large product on all GPUs at once, for many seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SustainedReport {
    /// Rows, columns and terms of the product, its type and whose it is.
    pub product: String,
    /// Seconds that were asked for.
    pub seconds: f64,
    /// Each GPU.
    pub gpus: Vec<GpuLoad>,
    /// Why it did not come to its end, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broke: Option<String>,
}

/// What one GPU did under load.
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
    /// Why its rate is not believed, in one sentence: the product was wrong, before or after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrong: Option<String>,
}

impl GpuLoad {
    /// The median rate of the second half, when the GPU is warm, in 1e12 operations a second.
    pub fn warm_tflops(&self) -> Option<f64> {
        let mut warm: Vec<f64> =
            self.rates[self.rates.len() / 2..].iter().map(|rate| rate.tflops).collect();
        warm.compact_sort_by(f64::total_cmp);
        warm.get(warm.len() / 2).copied()
    }
}

/// A rate over a stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LoadRate {
    /// Seconds from the beginning to the end of the stretch.
    pub seconds: f64,
    /// 1e12 operations a second.
    pub tflops: f64,
}

/// The state of a GPU at one moment of the load, as NVML tells it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadState {
    /// Seconds since the load began.
    pub seconds: f64,
    /// Power drawn.
    pub watts: Option<f64>,
    /// Clock of the multiprocessors in MHz.
    pub sm_mhz: Option<u32>,
    /// Degrees Celsius.
    pub celsius: Option<u32>,
    /// NVML's names of what holds the clocks down; idleness is not counted.
    pub held_down_by: Vec<String>,
}
