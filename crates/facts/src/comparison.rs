use crate::{BackendKind, Status};
use serde::{Deserialize, Serialize};

/// Two runs held beside each other: what `firstlight compare --json` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// The run that the other one is held against.
    pub base: String,
    /// The run that is looked at.
    pub run: String,
    /// Change of a median, in percent, from which on it is called a change.
    pub tolerance_pct: f64,
    /// Where machine, stack or source differ.
    pub surroundings: Vec<Difference>,
    /// Errors and warnings that only one of the runs has.
    pub findings: Vec<FindingChange>,
    /// Checks whose outcome differs or that only one of the runs has.
    pub parity: Vec<ParityChange>,
    /// How many checks have the same outcome in both.
    pub parity_same: usize,
    /// How many of these pass, with their evidence; what is skipped or does not apply in both proves nothing.
    pub parity_passed: usize,
    /// Ceilings that both runs measured.
    pub ceilings: Vec<CeilingChange>,
    /// Every kernel that either run timed, slowed down most first.
    pub speed: Vec<SpeedChange>,
    /// Why times cannot be told apart: a run shared its machine, or its ceilings moved. One sentence each.
    #[serde(default)]
    pub unclear: Vec<String>,
    /// What could not be compared, and files that were changed after their run, one sentence each.
    pub notes: Vec<String>,
}

/// Something about the runs' surroundings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// `GPU 0`, `driver`, `torch`, `firstlight`.
    pub what: String,
    /// In the base; `None` where it has none.
    pub base: Option<String>,
    /// In the run.
    pub run: Option<String>,
}

/// A finding that only one of two runs has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingChange {
    /// Id of the rule.
    pub rule: String,
    /// The finding's title.
    pub title: String,
    /// Whether the run has it, and not the base.
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
    /// Outcome in the base; `None` where it did not run the check.
    pub base: Option<Status>,
    /// Outcome in the run.
    pub run: Option<Status>,
    /// The reason the run gives.
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

/// A median with the interval in which the true one lies, milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Median.
    pub median_ms: f64,
    /// Lower end of the median's 99 % confidence interval by order statistics; without samples, as far below the median as
    /// the 95th percentile is above it.
    pub low_ms: f64,
    /// Upper end.
    pub high_ms: f64,
}

/// What two times of a kernel allow to be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// Slower by more than the tolerance, and the intervals are apart.
    Slower,
    /// The median moved by more than the tolerance, but the intervals overlap: more samples are needed. Or a run was
    /// disturbed, as [`SpeedChange::disturbed`] says.
    Unclear,
    /// The base timed it and the run did not.
    Gone,
    /// The run timed it and the base did not.
    New,
    /// Within the tolerance.
    Same,
    /// Faster by more than the tolerance, and the intervals are apart.
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
    pub base: Option<Spread>,
    /// Time in the run.
    pub run: Option<Spread>,
    /// Change of the median in percent: 100 is twice as long. `None` where one of them is missing.
    pub change_pct: Option<f64>,
    /// What it amounts to.
    pub change: Change,
    /// Whether the samples alone would say slower, faster or the same, and a run's conditions take that back.
    #[serde(default)]
    pub disturbed: bool,
}

/// How a gate ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GateOutcome {
    /// Nothing got worse.
    Passed,
    /// Nothing that can be told got worse, but a run was disturbed: times have to be taken again.
    Unclear,
    /// Something got worse, or a run cannot stand for itself.
    Failed,
}

/// What `firstlight gate --json` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GateReport {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// Whether the run may pass.
    pub passed: bool,
    /// The outcome, which also knows runs whose times cannot be told apart.
    pub outcome: GateOutcome,
    /// Why not, one sentence each.
    pub failures: Vec<String>,
    /// Checks that pass in both runs and timings that hold, counted.
    pub held: usize,
    /// The comparison behind it.
    pub comparison: Comparison,
}
