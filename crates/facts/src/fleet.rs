use crate::{BackendKind, Finding, GpuKind, NotRun, Severity};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What `stack.json` of a rank's run folder holds: the files that its programs are made of, by their bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackReport {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// Each file once, by its name.
    pub files: Vec<StackFile>,
}

/// A file of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackFile {
    /// What it is called on every node: `firstlight`, `libcuda`, `env 1: torch/lib/libtorch.so`.
    pub what: String,
    /// Where it lies.
    pub path: String,
    /// The release that the file, or the one that lists it, names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of its bytes in lower-case hexadecimal; `None` where no time was left to read it, or it could not be read.
    pub sha256: Option<String>,
}

/// What `fleet.json` holds: the checks of all ranks, beside each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FleetReport {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// The launcher that started the ranks.
    pub launcher: String,
    /// Every rank in order.
    pub ranks: Vec<RankPart>,
    /// What was compared with its like, by the numbers that `kinds` has for it.
    pub devices: Vec<FleetDevice>,
    /// What came of comparing the devices of one name. Its numbers are indices of `devices`.
    pub kinds: Vec<GpuKind>,
    /// Files that were compared between ranks.
    pub stack_compared: u32,
    /// Those that are not the same everywhere.
    pub stack: Vec<StackDiffers>,
    /// What is wrong between the ranks, worst first.
    pub findings: Vec<Finding>,
    /// What the ranks' own checks found, worst first.
    pub found: Vec<FoundOnRanks>,
}

/// What one rank's check came to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RankPart {
    /// Its number.
    pub rank: u32,
    /// The name of its host.
    pub host: String,
    /// Its run folder within the fleet's; empty where none arrived.
    pub folder: String,
    /// The verdict of its own report; empty where none arrived.
    pub verdict: String,
    /// Checks of firstlight's own kernels and models that passed.
    pub passed: u32,
    /// Those that failed.
    pub failed: u32,
    /// Kernels that were timed.
    pub timed: u32,
    /// Files of its stack that were not read, because no time was left.
    pub unread: u32,
    /// What it left out.
    pub not_run: Vec<NotRun>,
    /// Why its check did not come to its end, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broke: Option<String>,
}

/// A GPU or a processor of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetDevice {
    /// The rank.
    pub rank: u32,
    /// The name of its host.
    pub host: String,
    /// What it is.
    pub backend: BackendKind,
    /// The driver's index of a GPU there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// Product name.
    pub name: String,
}

/// A file that is not the same on all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackDiffers {
    /// What it is called everywhere.
    pub what: String,
    /// The ranks that most of the others disagree with; empty where no majority agrees.
    pub odd: Vec<u32>,
    /// Each different file with its ranks.
    pub forms: Vec<StackForm>,
}

/// One of the files that ranks have under one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackForm {
    /// The file as the first of these ranks has it; `None` for ranks that do not have it.
    pub file: Option<StackFile>,
    /// The ranks that have it.
    pub ranks: Vec<u32>,
}

/// A finding of the ranks' own checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundOnRanks {
    /// How bad it is.
    pub severity: Severity,
    /// Rule id.
    pub rule: String,
    /// What is wrong, in the words of each rank that has other ones.
    pub titles: BTreeMap<u32, String>,
}
