use crate::{BackendKind, Status};
use serde::{Deserialize, Serialize};

/// Comparison of two runs: what `firstlight compare --json` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// The base run.
    pub base: String,
    /// The run compared with it.
    pub run: String,
    /// Minimum change of a median, in percent, that counts as a change.
    pub tolerance_pct: f64,
    /// Differences of machine, environment or source.
    pub surroundings: Vec<Difference>,
    /// Errors and warnings that only one run has.
    pub findings: Vec<FindingChange>,
    /// Checks with a different outcome, or that only one run has.
    pub parity: Vec<ParityChange>,
    /// Number of checks with the same outcome in both.
    pub parity_same: usize,
    /// Number of these that pass with evidence; skipped and not applicable ones are not counted.
    pub parity_passed: usize,
    /// Ceilings that both runs measured.
    pub ceilings: Vec<CeilingChange>,
    /// Every kernel that was timed in either run, largest slowdown first.
    pub speed: Vec<SpeedChange>,
    /// Why times are not comparable, one sentence each: another process used a run's machine, or its ceilings changed.
    #[serde(default)]
    pub unclear: Vec<String>,
    /// Values that could not be compared, and files changed after their run, one sentence each.
    pub notes: Vec<String>,
}

/// A difference of machine, environment or source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// `GPU 0`, `driver`, `torch`, `firstlight`.
    pub what: String,
    /// Its value in the base; `None` if it has none.
    pub base: Option<String>,
    /// Its value in the run.
    pub run: Option<String>,
}

/// A finding that only one of two runs has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingChange {
    /// Id of the rule.
    pub rule: String,
    /// The finding's title.
    pub title: String,
    /// True if only the run has it, false if only the base.
    pub appeared: bool,
    /// Whether it is an error.
    pub is_error: bool,
}

/// A check whose outcome differs between two runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParityChange {
    /// Op.
    pub op: String,
    /// Case.
    pub case: String,
    /// Storage type.
    pub dtype: String,
    /// Backend.
    pub backend: BackendKind,
    /// Kernel variant or peer.
    pub variant: String,
    /// Outcome in the base; `None` if it was not run there.
    pub base: Option<Status>,
    /// Outcome in the run.
    pub run: Option<Status>,
    /// The run's reason.
    pub reason: String,
}

/// A ceiling in both runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CeilingChange {
    /// `memory copy on cuda`.
    pub what: String,
    /// Rate in the base, in `unit`.
    pub base: f64,
    /// Rate in the run, in `unit`.
    pub run: f64,
    /// `GB/s` or `GFLOP/s`.
    pub unit: String,
}

/// A median with its confidence interval, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TimingSpread {
    /// Median.
    pub median_ms: f64,
    /// Lower end of the median's 99 % confidence interval by order statistics; without samples, as far below the median
    /// as the 95th percentile is above it.
    pub low_ms: f64,
    /// Upper end.
    pub high_ms: f64,
}

/// The conclusion from two times of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// Slower by more than the tolerance, and the confidence intervals do not overlap.
    Slower,
    /// The median changed by more than the tolerance, but the confidence intervals overlap, so that more samples are needed;
    /// or a run was disturbed ([`SpeedChange::disturbed`]).
    Unclear,
    /// Timed in the base only.
    Gone,
    /// Timed in the run only.
    New,
    /// Within the tolerance.
    Same,
    /// Faster by more than the tolerance, and the confidence intervals do not overlap.
    Faster,
}

impl Change {
    /// The word used on the terminal and in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Slower => "slower",
            Self::Unclear => "unclear",
            Self::Gone => "gone",
            Self::New => "new",
            Self::Same => "same",
            Self::Faster => "faster",
        }
    }
}

/// One kernel in two runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpeedChange {
    /// Op.
    pub op: String,
    /// Case.
    pub case: String,
    /// Storage type.
    pub dtype: String,
    /// Backend.
    pub backend: BackendKind,
    /// The peer whose kernel it is; `None` for firstlight's own.
    pub peer: Option<String>,
    /// Variant in the base.
    pub base_variant: Option<String>,
    /// Variant in the run.
    pub run_variant: Option<String>,
    /// Time in the base.
    pub base: Option<TimingSpread>,
    /// Time in the run.
    pub run: Option<TimingSpread>,
    /// Change of the median in percent: 100 is twice as long. `None` if one of them is missing.
    pub change_pct: Option<f64>,
    /// The conclusion.
    pub change: Change,
    /// Whether the samples show a change, but a run's conditions (other processes, changed ceilings) invalidate it.
    #[serde(default)]
    pub disturbed: bool,
}

/// The result of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GateOutcome {
    /// Nothing got worse.
    Passed,
    /// Nothing is known to be worse, but a run was disturbed, so that timings must be repeated.
    Unclear,
    /// Something got worse, or a run is not valid.
    Failed,
}

/// The report of `firstlight gate --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GateReport {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// Whether the run may pass.
    pub passed: bool,
    /// The result, which also covers runs whose times are not comparable.
    pub outcome: GateOutcome,
    /// Why not, one sentence each.
    pub failures: Vec<String>,
    /// Number of checks that pass in both runs and of unchanged timings.
    pub held: usize,
    /// The comparison it is based on.
    pub comparison: Comparison,
}
