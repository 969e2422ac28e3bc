use crate::BackendKind;
use serde::{Deserialize, Serialize};

/// Outcome of comparing one kernel with the float64 reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Status {
    /// Ran (launches were counted) and agreed within the tolerance.
    #[serde(rename = "PASS")]
    Pass,
    /// Ran and disagreed, wrote NaN, left outputs unwritten, was never launched, or crashed.
    #[serde(rename = "FAIL")]
    Fail,
    /// Ran, and may agree, but another kernel than the requested one ran; a failure with a separate name.
    #[serde(rename = "FALLBACK")]
    Fallback,
    /// Could have run but did not, for the given reason; never counted as a pass.
    #[serde(rename = "SKIP")]
    Skip,
    /// Impossible here (no such hardware, no such form of the op); never counted as a pass.
    #[serde(rename = "N/A")]
    NotApplicable,
    /// An installed kernel that was not run or not awaited because its time limit was reached: neither a pass nor a
    /// finding about it.
    #[serde(rename = "NOT RUN")]
    NotRun,
}

impl Status {
    /// Every status, passes first.
    pub const ALL: [Self; 6] =
        [Self::Pass, Self::Fail, Self::Fallback, Self::Skip, Self::NotApplicable, Self::NotRun];

    /// The word used in JSON, CSV and on the terminal.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Fail => "FAIL",
            Self::Fallback => "FALLBACK",
            Self::Skip => "SKIP",
            Self::NotApplicable => "N/A",
            Self::NotRun => "NOT RUN",
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// One row of the parity matrix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParityRow {
    /// Op, such as `attention`; `model` for an engine that runs a whole model.
    pub op: String,
    /// Case: its origin and shape, `ffpa/d320-gqa16x4`.
    pub case: String,
    /// The backend.
    pub backend: BackendKind,
    /// The selected kernel variant.
    pub variant: String,
    /// Storage type of the inputs: `f32`, `bf16`, `f16`.
    pub dtype: String,
    /// Outcome.
    pub status: Status,
    /// The reason of anything but a pass; empty for a pass.
    pub reason: String,
    /// Maximum ||out - ref|| / ||ref|| over the outputs; `None` if nothing was compared.
    pub rel_err: Option<f64>,
    /// Maximum |out - ref| over the outputs.
    pub max_err: Option<f64>,
    /// The tolerated relative error.
    pub tolerance: f64,
    /// Launches of the variant, counted by the device.
    pub launches: u64,
    /// Wall time of the verified run in milliseconds (not a benchmark).
    pub millis: f64,
    /// The installed package that provides the kernel, with its version; `None` for firstlight's own.
    #[serde(default)]
    pub peer: Option<String>,
    /// Kernels that a profiler saw, with counts, the peer's own first. For a model, the kernels that the device
    /// counted; empty for firstlight's other ops, whose launches are all of one kernel.
    #[serde(default)]
    pub evidence: String,
    /// SHA-256 of a GPU kernel's outputs in lower-case hexadecimal: each output's name, type, shape and bytes.
    /// [`ParityRow::VARIES`] if a second run gave other bits. `None` if nothing was hashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits: Option<String>,
}

impl ParityRow {
    /// Replaces the hash of outputs that a second run of the same kernel did not reproduce.
    pub const VARIES: &str = "varies";
}

/// The report of `firstlight verify --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParityReport {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// The matrix.
    pub rows: Vec<ParityRow>,
}

impl ParityReport {
    /// Number of rows that are failures, fallbacks included.
    pub fn failures(&self) -> usize {
        self.count(Status::Fail) + self.count(Status::Fallback)
    }

    /// Number of rows with this status.
    pub fn count(&self, status: Status) -> usize {
        self.rows.iter().filter(|row| row.status == status).count()
    }
}
