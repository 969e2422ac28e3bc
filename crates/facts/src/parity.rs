use crate::BackendKind;
use serde::{Deserialize, Serialize};

/// Outcome of holding one kernel against the float64 reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Status {
    /// Ran (launches were counted) and agreed within the tolerance.
    #[serde(rename = "PASS")]
    Pass,
    /// Ran and disagreed, wrote NaN, left outputs unwritten, was never launched, or broke.
    #[serde(rename = "FAIL")]
    Fail,
    /// Ran and may even agree, but what ran was not the kernel asked for; a failure, told apart by its name.
    #[serde(rename = "FALLBACK")]
    Fallback,
    /// Could have run here but was not, for the reason given; never counted as a pass.
    #[serde(rename = "SKIP")]
    Skip,
    /// Cannot exist here (no such hardware, no such form of the op); never counted as a pass.
    #[serde(rename = "N/A")]
    NotApplicable,
    /// An installed kernel that was not asked, or not waited for, because its time was spent: neither a pass nor a finding
    /// about it.
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
    /// Op, such as `attention`; `model` for an engine that runs a whole one.
    pub op: String,
    /// Case: where it comes from and its shape, `ffpa/d320-gqa16x4`.
    pub case: String,
    /// Where it ran.
    pub backend: BackendKind,
    /// The kernel variant that was chosen.
    pub variant: String,
    /// Storage type of the inputs: `f32`, `bf16`, `f16`.
    pub dtype: String,
    /// Outcome.
    pub status: Status,
    /// Why, for anything but a pass; empty for a pass.
    pub reason: String,
    /// Largest ||out - ref|| / ||ref|| over the outputs; `None` when nothing was compared.
    pub rel_err: Option<f64>,
    /// Largest |out - ref| over the outputs.
    pub max_err: Option<f64>,
    /// The relative error allowed.
    pub tolerance: f64,
    /// Launches of the variant counted by the device while it ran.
    pub launches: u64,
    /// Wall time of the checked run in milliseconds (not a benchmark).
    pub millis: f64,
    /// The installed package whose kernel it is, with its version; `None` for firstlight's own.
    #[serde(default)]
    pub peer: Option<String>,
    /// What a profiler saw run: kernels with their counts, the peer's own first. For a model the kernels that the device
    /// counted, and empty for firstlight's other ops, whose launches are those of one kernel.
    #[serde(default)]
    pub evidence: String,
    /// SHA-256 of what a kernel of a GPU gave, in lower-case hexadecimal: each output's name, type, shape and bytes.
    /// [`ParityRow::VARIES`] where it gave other bits when it ran again. `None` where nothing was hashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits: Option<String>,
}

impl ParityRow {
    /// Stands for the hash of outputs that a second run of the same kernel did not give again.
    pub const VARIES: &str = "varies";
}

/// What `firstlight verify --json` prints.
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
