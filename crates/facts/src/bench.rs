use crate::{BackendKind, Conditions};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The machine's measured limits, from the same run as the rows compared with them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// Their backend; only rows of the same backend are compared with them.
    pub backend: BackendKind,
    /// Memory copy, bytes read plus bytes written, in 1e9 bytes per second.
    pub copy_gbps: f64,
    /// Dense matrix product rates.
    pub gemm_gflops: GemmCeilings,
    /// Memory reads only, in 1e9 bytes per second; `None` if not measured.
    #[serde(default)]
    pub read_gbps: Option<f64>,
    /// The library of the matrix product and its file, if it was not firstlight's own.
    #[serde(default)]
    pub gemm_by: Option<String>,
    /// Ceilings that a verified kernel exceeded. They are set to that kernel's rate.
    #[serde(default)]
    pub raised: Vec<RaisedCeiling>,
}

impl Ceilings {
    /// The rate of a ceiling in its unit; `None` if not measured.
    pub fn rate(&self, kind: CeilingKind) -> Option<f64> {
        match kind {
            CeilingKind::Copy => Some(self.copy_gbps),
            CeilingKind::Read => self.read_gbps,
            CeilingKind::GemmF32 => self.gemm_gflops.f32,
            CeilingKind::GemmBf16 => self.gemm_gflops.bf16,
        }
    }

    /// Sets the rate of a ceiling.
    pub fn set_rate(&mut self, kind: CeilingKind, rate: f64) {
        match kind {
            CeilingKind::Copy => self.copy_gbps = rate,
            CeilingKind::Read => self.read_gbps = Some(rate),
            CeilingKind::GemmF32 => self.gemm_gflops.f32 = Some(rate),
            CeilingKind::GemmBf16 => self.gemm_gflops.bf16 = Some(rate),
        }
    }
}

/// A ceiling that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CeilingKind {
    /// Memory that is read and written.
    Copy,
    /// Memory that is only read.
    Read,
    /// The dense matrix product in float32.
    GemmF32,
    /// The dense matrix product of bfloat16 inputs.
    GemmBf16,
}

impl CeilingKind {
    /// Every ceiling.
    pub const ALL: [Self; 4] = [Self::Copy, Self::Read, Self::GemmF32, Self::GemmBf16];

    /// The name used in JSON and CSV.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Read => "read",
            Self::GemmF32 => "gemm-f32",
            Self::GemmBf16 => "gemm-bf16",
        }
    }

    /// A description.
    pub fn words(self) -> &'static str {
        match self {
            Self::Copy => "memory copy",
            Self::Read => "memory read",
            Self::GemmF32 => "f32 matrix product",
            Self::GemmBf16 => "bf16 matrix product",
        }
    }

    /// The unit of its rate.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Copy | Self::Read => "GB/s",
            Self::GemmF32 | Self::GemmBf16 => "GFLOP/s",
        }
    }
}

/// A ceiling that turned out too low.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RaisedCeiling {
    /// Which.
    pub ceiling: CeilingKind,
    /// Its measured rate, in its unit.
    pub measured: f64,
    /// The verified kernel that exceeded it: `attention prefill-2048 f32 flash.avx512`.
    pub by: String,
}

/// Dense matrix product rates in 1e9 floating-point operations per second; `None` if the machine has no such path.
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
pub enum RooflineBound {
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
    /// The timed workload: `prefill-2048`, `decode-b64`.
    pub case: String,
    /// Dimensions by name: `B`, `T`, `H`, `D`, ...
    pub shape: BTreeMap<String, u64>,
    /// Storage type of the inputs.
    pub dtype: String,
    /// The backend that ran it.
    pub backend: BackendKind,
    /// Kernel variant.
    pub variant: String,
    /// Timed samples after warm-up.
    pub samples: u32,
    /// Runs per sample: 1, or more if a decoding step was replayed back to back, with warm caches.
    #[serde(default = "one")]
    pub replays: u32,
    /// The samples in order, in milliseconds; empty for a row read from a table.
    #[serde(default)]
    pub samples_ms: Vec<f64>,
    /// Median milliseconds.
    pub median_ms: f64,
    /// 95th percentile milliseconds.
    pub p95_ms: f64,
    /// Achieved 1e9 floating-point operations per second, counted by the op's formula.
    pub gflops: f64,
    /// Achieved 1e9 bytes per second, counting each input once and each output once.
    pub gbps: f64,
    /// Which ceiling the percentage refers to.
    pub bound: RooflineBound,
    /// Percent of that ceiling; `None` if it was not measured, or if caches hold the data.
    pub pct_of_ceiling: Option<f64>,
    /// The ceiling; `None` in runs recorded without it, or if there is none.
    #[serde(default)]
    pub against: Option<CeilingKind>,
    /// Whether the kernel is limited by memory and its data fits in caches, so that no memory ceiling applies.
    #[serde(default)]
    pub cache_resident: bool,
    /// Relative error of the verification that admitted this row.
    pub verified_rel_err: f64,
    /// Milliseconds of one run of the single-threaded float64 reference on the same inputs, if requested.
    pub reference_ms: Option<f64>,
    /// Median milliseconds of dense attention over the same queries, keys and values, verified and timed interleaved
    /// with this kernel; it also has a separate row. `None` if it was not timed.
    #[serde(default)]
    pub dense_ms: Option<f64>,
    /// The installed package that provides the kernel, with its version; `None` for firstlight's own.
    #[serde(default)]
    pub peer: Option<String>,
    /// The peer's kernels that a profiler saw, before and after the timing; empty for firstlight's own.
    #[serde(default)]
    pub evidence: String,
}

fn one() -> u32 {
    1
}

/// The report of `firstlight bench --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    /// Always [`crate::SCHEMA`].
    pub schema: u32,
    /// Ceilings of this run, one entry for each backend.
    pub ceilings: Vec<Ceilings>,
    /// Timed kernels.
    pub rows: Vec<BenchRow>,
    /// Workloads that were not timed, with the reason, one sentence each.
    pub not_timed: Vec<String>,
    /// Calls that an installed package does not support, one sentence each; not a failure.
    #[serde(default)]
    pub not_applicable: Vec<String>,
    /// Timings that were not run for lack of time: those of installed kernels, and all later ones if the whole run's
    /// time limit was reached.
    #[serde(default)]
    pub not_run: Vec<SkippedTiming>,
    /// Other activity while each backend was timed; empty in runs recorded without it.
    #[serde(default)]
    pub conditions: Vec<Conditions>,
}

/// A timing that was not run for lack of time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedTiming {
    /// The workload: `kda prefill-2048 bf16`.
    pub case: String,
    /// The installed kernel by its name; `firstlight` for its own.
    pub peer: String,
    /// Which time limit was reached, in one sentence.
    pub why: String,
}

impl BenchReport {
    /// Appends the ceilings and rows of another run.
    #[must_use]
    pub fn joined(mut self, other: Self) -> Self {
        self.ceilings.extend(other.ceilings);
        self.rows.extend(other.rows);
        self.not_timed.extend(other.not_timed);
        self.not_applicable.extend(other.not_applicable);
        self.not_run.extend(other.not_run);
        self.conditions.extend(other.conditions);
        self
    }
}
