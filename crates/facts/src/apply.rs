use crate::Finding;
use serde::{Deserialize, Serialize};

/// What an apply did, as `firstlight apply --json` prints it; also kept in the environment it made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApplyReport {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// The environment.
    pub venv: String,
    /// SHA-256 of the plan as it was written down, in lower-case hexadecimal.
    pub plan_sha256: String,
    /// How it ended.
    pub outcome: ApplyOutcome,
    /// Whether it went on with what an interrupted apply had done.
    pub resumed: bool,
    /// What was done, in order.
    pub steps: Vec<ApplyStep>,
    /// What is installed, in the order of the plan.
    pub packages: Vec<AppliedPackage>,
    /// Lines that the new environment's own interpreter printed about itself, label and value.
    pub proof: Vec<(String, String)>,
    /// What doctor says about the new environment; no error among it.
    pub findings: Vec<Finding>,
    /// Where the replaced environment is kept; `None` where there was none, or where it was discarded.
    pub kept_old: Option<String>,
}

/// How an apply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApplyOutcome {
    /// The environment is new.
    Made,
    /// The environment took the place of another one.
    Replaced,
    /// The environment is what the plan says already, and was left as it is.
    Unchanged,
    /// Files that were not what the plan installed were written again.
    Repaired,
}

/// One step of an apply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApplyStep {
    /// `verify`, `preconditions`, `environment`, `download`, `judge`, `install`, `build`, `repair`, `examine`, `prove`, `switch`.
    pub name: String,
    /// Duration in milliseconds.
    pub millis: f64,
    /// Bytes it moved: fetched over the network in `download`, written in `judge`.
    pub bytes: u64,
    /// One line on what came out of it.
    pub outcome: String,
}

/// One package as it was installed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AppliedPackage {
    /// Normalised name.
    pub name: String,
    /// Version.
    pub version: String,
    /// The wheel that was installed.
    pub file: String,
    /// Its SHA-256 in lower-case hexadecimal.
    pub sha256: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Bytes of it, or of its source, that were fetched in this run; 0 where they were there already.
    pub fetched_bytes: u64,
    /// How it was built, where it was.
    pub build: Option<AppliedBuild>,
}

/// How a package was built from source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AppliedBuild {
    /// Duration in seconds, fetching the source not counted.
    pub seconds: f64,
    /// Compile jobs at once.
    pub jobs: u32,
    /// The most memory that its processes had together, in bytes, where the system tells.
    pub peak_memory_bytes: Option<u64>,
    /// The log, in the environment.
    pub log: String,
    /// What shows that it compiled, one sentence for each library of the wheel.
    pub evidence: Vec<String>,
}
