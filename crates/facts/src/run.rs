use crate::BackendKind;
use serde::{Deserialize, Serialize};

/// Whether a run folder is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// Running, interrupted or failed: some artifacts are missing.
    Incomplete,
    /// Every stage finished and every artifact was hashed.
    Complete,
}

/// `run.json` of a run folder: the command, its source, and every artifact with its hash.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunManifest {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// Written as `incomplete` first and changed to `complete` last.
    pub state: RunState,
    /// The command line.
    pub command: Vec<String>,
    /// Version of firstlight.
    pub version: String,
    /// Source tree firstlight was built from.
    pub built_from: Option<SourceTree>,
    /// Source tree the command was run in, when it is a git checkout.
    pub run_in: Option<SourceTree>,
    /// Host name.
    pub host: String,
    /// Start, RFC 3339 in UTC.
    pub started: String,
    /// End, RFC 3339 in UTC; `None` while incomplete.
    pub finished: Option<String>,
    /// Stages in order.
    pub stages: Vec<Stage>,
    /// Stages that were deliberately skipped.
    pub not_run: Vec<SkippedStage>,
    /// Coverage of the verification; `None` before it, and in runs recorded without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coverage: Option<Coverage>,
    /// Files of the folder, `run.json` and the two reports themselves excepted.
    pub artefacts: Vec<Artefact>,
}

/// Which kernels a run verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// Backends on which a check of firstlight's own kernels passed.
    pub backends: Vec<BackendKind>,
    /// The coverage of the machine's GPUs.
    pub gpu: GpuCoverage,
}

/// Whether the kernels of a GPU were verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuCoverage {
    /// Checks of firstlight's own kernels passed on one.
    Verified,
    /// A GPU is here, and no check passed on it.
    NotVerified,
    /// No GPU is visible to this process.
    NoneVisible,
}

/// A git checkout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceTree {
    /// Full commit hash.
    pub commit: String,
    /// Whether tracked files differed from that commit.
    pub dirty: bool,
}

/// One stage of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// `probe`, `diagnose`, `verify`, `bench`, `report`.
    pub name: String,
    /// Duration in milliseconds.
    pub millis: f64,
    /// One line about its result.
    pub outcome: String,
}

/// Why a run left out what it did not start before its time limit.
pub const OUT_OF_TIME: &str = "the time that this run may take was spent";

/// Something a run left out, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedStage {
    /// The stage or part.
    pub what: String,
    /// The reason.
    pub why: String,
}

/// One file of a run folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artefact {
    /// Path relative to the run folder.
    pub path: String,
    /// Its content.
    pub what: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 in lower-case hex.
    pub sha256: String,
}
