//! A run beside figures that other people reported of their machine.

use serde::{Deserialize, Serialize};

/// What `bench --baseline` adds to its report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BaselineReport {
    /// The baseline's name.
    pub name: String,
    /// The shape that both are of: `B=1 H=48 Tq=8192`.
    pub shape: String,
    /// Timed in this run.
    pub here: Vec<BaselineRow>,
    /// Reported.
    pub there: Vec<ReportedFigure>,
}

/// A timed kernel at a shape of the baseline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BaselineRow {
    /// Channels of a head.
    pub channels: u64,
    /// Storage type.
    pub dtype: String,
    /// `firstlight`, or an installed kernel's name.
    pub kernel: String,
    /// By the median, in 1e12 operations per second.
    pub tflops: f64,
    /// How many times as fast as torch's efficient attention in the same run; `None` where that was not timed.
    pub speedup: Option<f64>,
}

/// A figure of a report, known no better than from one value to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReportedFigure {
    /// The kernel, in the report's words.
    pub series: String,
    /// The channels of a head it is of, the first and the last.
    pub channels: [u64; 2],
    /// `TFLOP/s`, or how many times as fast as what.
    pub unit: String,
    /// Lowest and highest value.
    pub values: [f64; 2],
    /// Where it was read.
    pub source: String,
}
