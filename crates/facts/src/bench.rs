use crate::BackendKind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the machine can do at best, measured in the same run as the rows held against it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// Where they were measured; only rows of the same backend are held against them.
    pub backend: BackendKind,
    /// Memory copy, bytes read plus bytes written, in 1e9 bytes per second.
    pub copy_gbps: f64,
    /// Dense matrix product rates.
    pub gemm_gflops: GemmCeilings,
    /// Whose matrix product it was, where it was not firstlight's own: a library's name and file.
    #[serde(default)]
    pub gemm_by: Option<String>,
}

/// Dense matrix product rates in 1e9 floating-point operations per second; `None` where the machine has no such path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GemmCeilings {
    /// float32.
    pub f32: Option<f64>,
    /// bfloat16 inputs, float32 accumulation.
    pub bf16: Option<f64>,
}

/// Which ceiling limits an op at a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Arithmetic.
    Compute,
    /// Memory traffic.
    Memory,
}

/// One timed kernel. Only a kernel that was verified in the same run has a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchRow {
    /// Op.
    pub op: String,
    /// What is timed: `prefill-2048`, `decode-b64`.
    pub case: String,
    /// Dimensions by name: `B`, `T`, `H`, `D`, ...
    pub shape: BTreeMap<String, u64>,
    /// Storage type of the inputs.
    pub dtype: String,
    /// Where it ran.
    pub backend: BackendKind,
    /// Kernel variant.
    pub variant: String,
    /// Timed samples after warm-up.
    pub samples: u32,
    /// Runs that each sample is the mean of: 1, or more where a step of decoding was replayed back to back, whose caches
    /// are then warm.
    #[serde(default = "one")]
    pub replays: u32,
    /// The samples themselves in the order they were taken, milliseconds; empty where a row was read from a table.
    #[serde(default)]
    pub samples_ms: Vec<f64>,
    /// Median milliseconds.
    pub median_ms: f64,
    /// 95th percentile milliseconds.
    pub p95_ms: f64,
    /// Achieved 1e9 floating-point operations per second, counted by the op's formula.
    pub gflops: f64,
    /// Achieved 1e9 bytes per second, counting each input read once and each output written once.
    pub gbps: f64,
    /// Which ceiling the percentage refers to.
    pub bound: Bound,
    /// Percent of that ceiling; `None` where the ceiling was not measured.
    pub pct_of_ceiling: Option<f64>,
    /// Relative error of the run that allowed this row.
    pub verified_rel_err: f64,
    /// Milliseconds of one run of the single-threaded float64 reference on the same inputs, where that was asked for.
    pub reference_ms: Option<f64>,
    /// Median milliseconds of dense attention over the same queries, keys and values, verified and timed in turns with
    /// this kernel; it has a row of its own too. `None` where it was not timed.
    #[serde(default)]
    pub dense_ms: Option<f64>,
    /// The installed package whose kernel it is, with its version; `None` for firstlight's own.
    #[serde(default)]
    pub peer: Option<String>,
    /// The peer's kernels that a profiler saw, before and after the timing; empty for firstlight's own.
    #[serde(default)]
    pub evidence: String,
}

fn one() -> u32 {
    1
}

/// What `firstlight bench --json` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// Ceilings of this run, one entry for each backend.
    pub ceilings: Vec<Ceilings>,
    /// Timed kernels.
    pub rows: Vec<BenchRow>,
    /// What was not timed and why, one sentence each.
    pub not_timed: Vec<String>,
    /// Calls that an installed package has no form of, one sentence each: no failure of it.
    #[serde(default)]
    pub not_applicable: Vec<String>,
}

impl BenchReport {
    /// The ceilings and rows of another run with these.
    #[must_use]
    pub fn joined(mut self, other: Self) -> Self {
        self.ceilings.extend(other.ceilings);
        self.rows.extend(other.rows);
        self.not_timed.extend(other.not_timed);
        self.not_applicable.extend(other.not_applicable);
        self
    }
}
