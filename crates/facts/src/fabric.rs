use serde::{Deserialize, Serialize};

/// What was measured between the GPUs of a machine. Whatever has a speed here was compared with what had to arrive, in the same run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FabricReport {
    /// The driver's index of each GPU, in the order of ranks.
    pub gpus: Vec<u32>,
    /// The library of the collectives, its version and where it lies; `None` where none was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nccl: Option<String>,
    /// Copies from each GPU to each other one.
    pub copies: Vec<PeerCopy>,
    /// Collectives of all GPUs, over sizes.
    pub collectives: Vec<Collective>,
    /// Sums of a few values inside a recorded graph.
    pub recorded: Vec<RecordedSum>,
    /// Gigabytes (1e9) a second that the links of one GPU carry each way, and where that was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<LinkLimit>,
    /// What was not measured.
    pub left_out: Vec<FabricLeft>,
    /// Why it did not come to its end, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broke: Option<String>,
    /// Seconds it took.
    pub seconds: f64,
}

/// Copies from one GPU to another. Rates are in units of 1e9 bytes a second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerCopy {
    /// The driver's index of the GPU that sends.
    pub from: u32,
    /// The driver's index of the GPU that gets.
    pub to: u32,
    /// Whether the first reaches the second one's memory; else copies go through the host.
    pub direct: bool,
    /// Bytes of a copy.
    pub bytes: u64,
    /// Rate of copies this way alone.
    pub gbps: Option<f64>,
    /// Rate of both ways together while both are copied at once; the same in both rows of a pair.
    pub both_gbps: Option<f64>,
    /// Microseconds of a copy of [`PeerCopy::SMALL_BYTES`], of many behind each other.
    pub micros: Option<f64>,
    /// 32-bit words that did not arrive as they were sent; with any there is no rate.
    pub wrong: u64,
    /// What the links between the two carry this way at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<LinkLimit>,
}

impl PeerCopy {
    /// Bytes of the small copy.
    pub const SMALL_BYTES: u64 = 16;
}

/// What links carry in one direction, by their number and rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkLimit {
    /// Units of 1e9 bytes a second.
    pub gbps: f64,
    /// `18 NVLinks of 26.6 GB/s`, `PCIe 5.0 x16`.
    pub words: String,
    /// Where number and rate were read.
    pub source: String,
}

/// What all GPUs do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CollectiveKind {
    /// Each gets the sum of all.
    AllReduce,
    /// Each gets what every one has, in their order.
    AllGather,
    /// Each gets its part of the sum.
    ReduceScatter,
    /// Each gets its part of what every one has.
    AllToAll,
}

impl CollectiveKind {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::AllReduce, Self::AllGather, Self::ReduceScatter, Self::AllToAll];

    /// `all-reduce`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllToAll => "all-to-all",
        }
    }

    /// Bus bandwidth over algorithm bandwidth for so many ranks, as nccl-tests define them (doc/PERFORMANCE.md): what a link of each
    /// GPU carries, whatever the number of GPUs.
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let ranks = ranks.max(1) as f64;
        let share = (ranks - 1.0) / ranks;
        if self == Self::AllReduce { 2.0 * share } else { share }
    }
}

/// One collective of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Collective {
    /// Which.
    pub kind: CollectiveKind,
    /// Bytes as nccl-tests count them: of the larger of what a rank gives and gets.
    pub bytes: u64,
    /// Microseconds of the slowest rank, the median of the samples; `None` where a result was wrong.
    pub micros: Option<f64>,
    /// Bytes by time, in units of 1e9 a second.
    pub algorithm_gbps: Option<f64>,
    /// The same times [`CollectiveKind::bus_factor`].
    pub bus_gbps: Option<f64>,
    /// Values that were not what they had to be, of all ranks.
    pub wrong: u64,
}

/// A sum of all GPUs, many times inside a recorded graph, as a decoding step has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedSum {
    /// Who sums: the kernel's name, or `NCCL`.
    pub by: String,
    /// Bytes that each GPU gives.
    pub bytes: u64,
    /// Microseconds of one, on the slowest GPU; `None` where a result was wrong.
    pub micros: Option<f64>,
    /// Values that were not what they had to be, of all GPUs.
    pub wrong: u64,
}

/// Something that was not measured, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FabricLeft {
    /// What.
    pub what: String,
    /// Why, in one sentence.
    pub why: String,
}
