use crate::BackendKind;
use serde::{Deserialize, Serialize};

/// Whether a run folder holds a whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// Still running, interrupted or failed: some artefacts are missing.
    Incomplete,
    /// Every stage ended and every artefact was hashed.
    Complete,
}

/// `run.json` of a run folder: what was run, from which source, and every artefact with its hash.
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
    /// What was deliberately not run.
    pub not_run: Vec<NotRun>,
    /// Whose kernels were verified; `None` while nothing was, and in runs recorded before it was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coverage: Option<Coverage>,
    /// Files of the folder, `run.json` and the two reports themselves excepted.
    pub artefacts: Vec<Artefact>,
}

/// Whose kernels a run verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// Backends on which a check of firstlight's own kernels passed.
    pub backends: Vec<BackendKind>,
    /// What this says of the machine's GPUs.
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
    /// One line on what came out of it.
    pub outcome: String,
}

/// Something a run left out, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotRun {
    /// What.
    pub what: String,
    /// Why.
    pub why: String,
}

/// One file of a run folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artefact {
    /// Path relative to the run folder.
    pub path: String,
    /// What it holds.
    pub what: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 in lower-case hex.
    pub sha256: String,
}
