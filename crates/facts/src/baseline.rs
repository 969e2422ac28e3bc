//! Comparison of a run with published figures of another machine.

use serde::{Deserialize, Serialize};

/// The part of a bench report that `--baseline` adds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BaselineReport {
    /// The baseline's name.
    pub name: String,
    /// The shape of both: `B=1 H=48 Tq=8192`.
    pub shape: String,
    /// Rows of this run.
    pub here: Vec<BaselineRow>,
    /// Published figures.
    pub there: Vec<ReportedFigure>,
}

/// A timed kernel at a shape of the baseline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BaselineRow {
    /// Channels per head.
    pub channels: u64,
    /// Storage type.
    pub dtype: String,
    /// `firstlight`, or an installed kernel's name.
    pub kernel: String,
    /// Computed from the median, in 1e12 operations per second.
    pub tflops: f64,
    /// Speedup over torch's efficient attention in the same run; `None` if that was not timed.
    pub speedup: Option<f64>,
}

/// A published figure, known as a range.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReportedFigure {
    /// The kernel's name in the publication.
    pub series: String,
    /// Range of channels per head, first and last.
    pub channels: [u64; 2],
    /// `TFLOP/s`, or a speedup over what.
    pub unit: String,
    /// Lowest and highest value.
    pub values: [f64; 2],
    /// The file it was read from.
    pub source: String,
}
