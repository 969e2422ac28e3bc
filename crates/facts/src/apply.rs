use crate::Finding;
use serde::{Deserialize, Serialize};

/// The report of `firstlight apply --json`; also stored in the new environment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApplyReport {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// The environment.
    pub venv: String,
    /// SHA-256 of the plan's file, in lower-case hexadecimal.
    pub plan_sha256: String,
    /// The effect on the environment.
    pub outcome: ApplyOutcome,
    /// Whether it resumed an interrupted apply.
    pub resumed: bool,
    /// The steps, in order.
    pub steps: Vec<ApplyStep>,
    /// The installed packages, in the order of the plan.
    pub packages: Vec<AppliedPackage>,
    /// Labels and values that the new environment's interpreter printed about itself, to prove that it works.
    pub proof: Vec<(String, String)>,
    /// The doctor's findings about the new environment, none of them an error.
    pub findings: Vec<Finding>,
    /// The backup of the replaced environment; `None` if there was none or it was discarded.
    pub kept_old: Option<String>,
}

/// The effect of an apply on the environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApplyOutcome {
    /// A new environment was created.
    Made,
    /// A new environment replaced another one.
    Replaced,
    /// The environment already matched the plan and was not changed.
    Unchanged,
    /// Files that differed from the plan were restored.
    Repaired,
}

/// One step of an apply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApplyStep {
    /// `look`, `verify`, `preconditions`, `environment`, `download`, `judge`, `install`, `build`, `repair`, `examine`, `prove` or
    /// `switch`.
    pub name: String,
    /// Duration in milliseconds.
    pub millis: f64,
    /// Bytes transferred: downloaded in `download`, written in `judge`.
    pub bytes: u64,
    /// One line about its result.
    pub outcome: String,
}

/// An installed package.
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
    /// Bytes of the wheel or its source downloaded in this run; 0 if it was cached.
    pub fetched_bytes: u64,
    /// How it was built, if it was.
    pub build: Option<AppliedBuild>,
}

/// How a package was built from source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AppliedBuild {
    /// Duration in seconds, without downloading the source.
    pub seconds: f64,
    /// Number of parallel compile jobs.
    pub jobs: u32,
    /// Peak memory of all its processes together, in bytes, if the system reports it.
    pub peak_memory_bytes: Option<u64>,
    /// The log, in the environment.
    pub log: String,
    /// Evidence that the build compiled code, one sentence for each library of the wheel.
    pub evidence: Vec<String>,
}
