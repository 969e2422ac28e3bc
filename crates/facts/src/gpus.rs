use crate::{CeilingKind, FabricReport, SustainedReport};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What `gpus.json` of a run folder holds: the GPUs that a check ran on, beside each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpusReport {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// Each GPU in the order in which they were named or found; the rows of the first are the run's own.
    pub gpus: Vec<GpuPart>,
    /// What came of comparing the GPUs of one name; a name that one GPU alone has is not in it.
    pub kinds: Vec<GpuKind>,
    /// What was measured between them; `None` for one GPU, or where that was not wanted or not reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<FabricReport>,
    /// What they did under load together; `None` where that was not wanted or not reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sustained: Option<SustainedReport>,
}

/// What one GPU's part of a check came to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuPart {
    /// The driver's index.
    pub index: u32,
    /// Product name.
    pub name: String,
    /// Where its rows lie: a folder of the run folder, or nothing for the run's own tables.
    pub folder: String,
    /// Checks of firstlight's own kernels and models that passed on it.
    pub passed: u32,
    /// Those that failed.
    pub failed: u32,
    /// Kernels that were timed on it.
    pub timed: u32,
    /// The test of its memory; `None` where it was not wanted or not reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryTest>,
    /// Why its part did not come to its end, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broke: Option<String>,
}

/// A test of the GPU memory that was free: each pattern is written over all of it and read back.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryTest {
    /// Bytes that were tested.
    pub bytes: u64,
    /// Bytes that were free when it began.
    pub free_bytes: u64,
    /// The patterns that were written and read back, in words.
    pub patterns: Vec<String>,
    /// Patterns for which no time was left.
    pub left_out: Vec<String>,
    /// Seconds it took.
    pub seconds: f64,
    /// Launches of its kernel, as the device counted them.
    pub launches: u64,
    /// Words of 64 bits that did not hold what was written, all patterns together.
    pub errors: u64,
    /// Some of them.
    pub examples: Vec<MemoryError>,
    /// Why it ended early or was not possible, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broke: Option<String>,
}

/// A word of GPU memory that did not hold what was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryError {
    /// The pattern.
    pub pattern: String,
    /// Its address on the GPU, as the process saw it: `0x7f3a40000008`.
    pub address: String,
    /// What was written, 64 bits in hexadecimal.
    pub written: String,
    /// What was read.
    pub read: String,
    /// The bits that differ, 0 for the lowest.
    pub bits: Vec<u32>,
}

/// The GPUs of one name, compared with each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuKind {
    /// Product name.
    pub name: String,
    /// Their indices.
    pub gpus: Vec<u32>,
    /// Checks whose outputs were compared bit by bit.
    pub compared: u32,
    /// Kernels that gave other bits when they ran again, on every GPU: they are not compared.
    pub varying: Vec<String>,
    /// Checks whose outputs were not the same on all of them.
    pub differing: Vec<BitsDiffer>,
    /// How fast each is beside its siblings.
    pub speed: Vec<GpuSpeed>,
}

/// A check whose outputs differ between GPUs of one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BitsDiffer {
    /// Op, case, storage type and variant.
    pub check: String,
    /// The GPUs that most of the others disagree with; empty where no majority agrees.
    pub odd: Vec<u32>,
    /// SHA-256 of each GPU's outputs, or [`crate::ParityRow::VARIES`], by its index.
    pub bits: BTreeMap<u32, String>,
}

/// A GPU's times over its siblings': each ratio is its median time by the median of the others' for the same kernel, so that
/// more than 1 is slower.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuSpeed {
    /// The GPU's index.
    pub gpu: u32,
    /// Kernels that it and a sibling were both timed with.
    pub rows: u32,
    /// The median of all ratios; `None` where nothing could be compared.
    pub median: Option<f64>,
    /// The median of each op's.
    pub by_op: BTreeMap<String, f64>,
    /// The largest ratios, with their kernels.
    pub slowest: Vec<RowRatio>,
    /// Its ceilings beside the others'.
    pub ceilings: Vec<CeilingRatio>,
}

/// A kernel that was timed on a GPU and on its siblings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RowRatio {
    /// Op, case, storage type and variant.
    pub row: String,
    /// Median milliseconds here.
    pub millis: f64,
    /// The median of the siblings' medians.
    pub usual_millis: f64,
    /// The first by the second.
    pub ratio: f64,
}

/// A ceiling of a GPU beside its siblings'.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CeilingRatio {
    /// Which.
    pub ceiling: CeilingKind,
    /// Its rate here, in its unit.
    pub rate: f64,
    /// The median of the siblings'.
    pub usual: f64,
    /// The second by the first: more than 1 is slower here.
    pub ratio: f64,
}
