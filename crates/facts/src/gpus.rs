use crate::{CeilingKind, FabricReport, SustainedReport};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The content of `gpus.json` in a run folder: a comparison of the GPUs that a check ran on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpusReport {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// Each GPU in the order in which it was named or found; the first one's rows are the run's own tables.
    pub gpus: Vec<GpuPart>,
    /// Comparison of GPUs with the same name; a name that only one GPU has is not listed.
    pub kinds: Vec<GpuKind>,
    /// Measurements between them; `None` for one GPU, or if not requested or not reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<FabricReport>,
    /// Sustained load on all of them; `None` if not requested or not reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sustained: Option<SustainedReport>,
}

/// The result of one GPU's part of a check.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuPart {
    /// The driver's index.
    pub index: u32,
    /// Product name.
    pub name: String,
    /// The folder of its rows in the run folder; empty for the run's own tables.
    pub folder: String,
    /// Checks of firstlight's own kernels and models that passed on it.
    pub passed: u32,
    /// Those that failed.
    pub failed: u32,
    /// Kernels that were timed on it.
    pub timed: u32,
    /// The test of its memory; `None` if not requested or not reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryTest>,
    /// Why its part did not finish, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broke: Option<String>,
}

/// A test of the free GPU memory: each pattern is written to all of it and read back.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryTest {
    /// Bytes that were tested.
    pub bytes: u64,
    /// Free bytes at the start.
    pub free_bytes: u64,
    /// Descriptions of the tested patterns.
    pub patterns: Vec<String>,
    /// Patterns that were not tested for lack of time.
    pub left_out: Vec<String>,
    /// Seconds it took.
    pub seconds: f64,
    /// Launches of its kernel, counted by the device.
    pub launches: u64,
    /// 64-bit words that did not match the pattern, over all patterns.
    pub errors: u64,
    /// Some of them.
    pub examples: Vec<MemoryError>,
    /// Why it ended early or was not possible, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broke: Option<String>,
}

/// A word of GPU memory that did not match its pattern.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryError {
    /// The pattern.
    pub pattern: String,
    /// Its GPU address in the process: `0x7f3a40000008`.
    pub address: String,
    /// The written value, 64 bits in hexadecimal.
    pub written: String,
    /// The value read back.
    pub read: String,
    /// The bits that differ, 0 for the lowest.
    pub bits: Vec<u32>,
}

/// A comparison of GPUs with the same name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuKind {
    /// Product name.
    pub name: String,
    /// Their indices.
    pub gpus: Vec<u32>,
    /// Checks whose outputs were compared bit by bit.
    pub compared: u32,
    /// Kernels that gave other bits on a second run, on every GPU; they are not compared.
    pub varying: Vec<String>,
    /// Checks whose outputs differ between them.
    pub differing: Vec<BitDifference>,
    /// The speed of each relative to the others.
    pub speed: Vec<GpuSpeed>,
}

/// A check whose outputs differ between GPUs of the same name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BitDifference {
    /// Op, case, storage type and variant.
    pub check: String,
    /// GPUs that differ from the majority; empty if there is no majority.
    pub odd: Vec<u32>,
    /// SHA-256 of each GPU's outputs, or [`crate::ParityRow::VARIES`], by its index.
    pub bits: BTreeMap<u32, String>,
}

/// A GPU's times relative to the other GPUs': each ratio is its median time over the median of the others' for the same
/// kernel, so that more than 1 is slower.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuSpeed {
    /// The GPU's index.
    pub gpu: u32,
    /// Kernels timed on it and on another GPU.
    pub rows: u32,
    /// The median of all ratios; `None` if nothing could be compared.
    pub median: Option<f64>,
    /// The median ratio of each op.
    pub by_op: BTreeMap<String, f64>,
    /// The largest ratios, with their kernels.
    pub slowest: Vec<RowRatio>,
    /// Its ceilings relative to the others'.
    pub ceilings: Vec<CeilingRatio>,
}

/// A kernel timed on a GPU and on the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RowRatio {
    /// Op, case, storage type and variant.
    pub row: String,
    /// Median milliseconds on this GPU.
    pub millis: f64,
    /// The median of the other GPUs' medians.
    pub usual_millis: f64,
    /// The first by the second.
    pub ratio: f64,
}

/// A ceiling of a GPU relative to the others'.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CeilingRatio {
    /// Which.
    pub ceiling: CeilingKind,
    /// Its rate on this GPU, in its unit.
    pub rate: f64,
    /// The median of the others.
    pub usual: f64,
    /// The second over the first: more than 1 is slower on this GPU.
    pub ratio: f64,
}
