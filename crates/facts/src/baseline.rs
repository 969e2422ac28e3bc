//! Comparison of a run with published results of another machine.

use serde::{Deserialize, Serialize};

/// The part of a bench report that `--baseline` adds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BaselineReport {
    /// The baseline's name.
    pub name: String,
    /// The shape of both results: `B=1 H=48 Tq=8192`.
    pub shape: String,
    /// Rows of this run.
    pub here: Vec<BaselineRow>,
    /// Published results.
    pub there: Vec<ReportedFigure>,
}

/// A timed kernel at a shape of the baseline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BaselineRow {
    /// Head dimension.
    pub channels: u64,
    /// Storage type.
    pub dtype: String,
    /// `firstlight`, or an installed kernel's name.
    pub kernel: String,
    /// TFLOP/s, computed from the median time.
    pub tflops: f64,
    /// Speedup over torch's memory-efficient attention (a backend of scaled_dot_product_attention) in the same run; `None` if
    /// that was not timed.
    pub speedup: Option<f64>,
}

/// A published result that is known as a range, such as one that was read from a plot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReportedFigure {
    /// The kernel's name in the publication.
    pub series: String,
    /// Lowest and highest head dimension.
    pub channels: [u64; 2],
    /// `TFLOP/s`, or the kernel that the speedup is relative to.
    pub unit: String,
    /// Lowest and highest value.
    pub values: [f64; 2],
    /// The file it was read from.
    pub source: String,
}
