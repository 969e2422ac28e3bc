use crate::{BackendKind, Finding, GpuKind, Severity, SkippedStage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The content of `stack.json` in a rank's run folder: the files of its software stack (programs, driver and libraries), with
/// hashes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackReport {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// Each file once, by its name.
    pub files: Vec<StackFile>,
}

/// A file of a software stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackFile {
    /// Its name, which is the same on every node: `firstlight`, `libcuda`, `environment 1: torch/lib/libtorch.so`.
    pub what: String,
    /// Its path.
    pub path: String,
    /// Its version, from its name or from the metadata that lists it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 in lower-case hexadecimal; `None` if there was no time to read it, or it could not be read.
    pub sha256: Option<String>,
}

/// The content of `fleet.json`: a comparison of all ranks' checks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FleetReport {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// The launcher that started the ranks.
    pub launcher: String,
    /// Every rank in order.
    pub ranks: Vec<RankPart>,
    /// The compared devices; `kinds` refers to their indices.
    pub devices: Vec<FleetDevice>,
    /// Comparison of devices with the same name, by index in `devices`.
    pub kinds: Vec<GpuKind>,
    /// Files that were compared between ranks.
    pub stack_compared: u32,
    /// Those that differ between ranks.
    pub stack: Vec<StackDifference>,
    /// Problems between the ranks, worst first.
    pub findings: Vec<Finding>,
    /// Findings of the ranks' own checks, worst first.
    pub found: Vec<RankFinding>,
}

/// The result of one rank's check.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RankPart {
    /// Its number.
    pub rank: u32,
    /// The name of its host.
    pub host: String,
    /// Its run folder within the fleet's; empty if none arrived.
    pub folder: String,
    /// The verdict of the rank's report; empty if none arrived.
    pub verdict: String,
    /// Checks of firstlight's own kernels and models that passed.
    pub passed: u32,
    /// Those that failed.
    pub failed: u32,
    /// Kernels that were timed.
    pub timed: u32,
    /// Files of its stack that were not read for lack of time.
    pub unread: u32,
    /// Stages that it skipped.
    pub not_run: Vec<SkippedStage>,
    /// Why its check did not finish, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broke: Option<String>,
}

/// A GPU or CPU of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetDevice {
    /// The rank.
    pub rank: u32,
    /// The name of the host.
    pub host: String,
    /// Its backend.
    pub backend: BackendKind,
    /// The driver's index, for a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// Product name.
    pub name: String,
}

/// A file that differs between ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackDifference {
    /// Its common name.
    pub what: String,
    /// Ranks that differ from the majority; empty if there is no majority.
    pub odd: Vec<u32>,
    /// Each distinct content of the file with its ranks.
    pub forms: Vec<StackForm>,
}

/// One of the distinct contents of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackForm {
    /// The file on the first of these ranks; `None` for ranks that do not have it.
    pub file: Option<StackFile>,
    /// The ranks that have it.
    pub ranks: Vec<u32>,
}

/// A finding of the ranks' own checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFinding {
    /// Its severity.
    pub severity: Severity,
    /// Rule id.
    pub rule: String,
    /// The title by rank.
    pub titles: BTreeMap<u32, String>,
}
