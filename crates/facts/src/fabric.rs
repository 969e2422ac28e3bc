use serde::{Deserialize, Serialize};

/// Measurements between the GPUs of a machine. Every speed here was measured in the run that checked the transferred
/// data.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FabricReport {
    /// The driver's index of each GPU, in the order of ranks.
    pub gpus: Vec<u32>,
    /// The library of the collectives, its version and path; `None` if none was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nccl: Option<String>,
    /// Copies from each GPU to each other one.
    pub copies: Vec<PeerCopy>,
    /// Collectives of all GPUs, over sizes.
    pub collectives: Vec<Collective>,
    /// All-reduces of a few values inside a CUDA graph.
    pub recorded: Vec<RecordedSum>,
    /// Rate of one GPU's links in each direction in 1e9 bytes per second, and where it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<LinkLimit>,
    /// Transfers that were not measured.
    pub left_out: Vec<UnmeasuredFabric>,
    /// Why the measurement did not finish, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broke: Option<String>,
    /// Seconds it took.
    pub seconds: f64,
}

/// Copies from one GPU to another. Rates are in 1e9 bytes per second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerCopy {
    /// The driver's index of the sender.
    pub from: u32,
    /// The driver's index of the receiver.
    pub to: u32,
    /// Whether there is peer access; otherwise copies go through the host.
    pub direct: bool,
    /// Bytes per copy.
    pub bytes: u64,
    /// Rate of copies in this direction alone.
    pub gbps: Option<f64>,
    /// Total rate with both directions at once; the same in both rows of a pair.
    pub both_gbps: Option<f64>,
    /// Microseconds per copy of [`PeerCopy::SMALL_BYTES`], of many in a row.
    pub micros: Option<f64>,
    /// 32-bit words that arrived with another value; if there are any, there is no rate.
    pub wrong: u64,
    /// Maximum rate of the links between the two in this direction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<LinkLimit>,
}

impl PeerCopy {
    /// Bytes of the small copy.
    pub const SMALL_BYTES: u64 = 16;
}

/// Rate of links in one direction, from their number and rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkLimit {
    /// In 1e9 bytes per second.
    pub gbps: f64,
    /// `18 NVLinks of 26.6 GB/s`, `PCIe 5.0 x16`.
    pub words: String,
    /// The file that number and rate were read from.
    pub source: String,
}

/// The kinds of collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CollectiveKind {
    /// Each rank gets the sum over all.
    AllReduce,
    /// Each rank gets the data of all, in order of ranks.
    AllGather,
    /// Each rank gets its part of the sum.
    ReduceScatter,
    /// Each rank gets its part of every rank's data.
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

    /// Ratio of bus bandwidth to algorithm bandwidth for this number of ranks, as nccl-tests define them
    /// (doc/PERFORMANCE.md): the rate per GPU link, independent of the number of GPUs.
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
    /// Bytes as nccl-tests count them: the larger of a rank's input and output.
    pub bytes: u64,
    /// Median microseconds of the slowest rank; `None` if a result was wrong.
    pub micros: Option<f64>,
    /// Bytes over time, in 1e9 per second.
    pub algorithm_gbps: Option<f64>,
    /// The algorithm bandwidth times [`CollectiveKind::bus_factor`].
    pub bus_gbps: Option<f64>,
    /// Number of wrong values on all ranks.
    pub wrong: u64,
}

/// An all-reduce over all GPUs, repeated inside a CUDA graph, as in a decoding step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedSum {
    /// The kernel's name, or `NCCL`.
    pub by: String,
    /// Bytes per GPU.
    pub bytes: u64,
    /// Microseconds per all-reduce on the slowest GPU; `None` if a result was wrong.
    pub micros: Option<f64>,
    /// Number of wrong values on all GPUs.
    pub wrong: u64,
}

/// Something that was not measured, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmeasuredFabric {
    /// The transfer.
    pub what: String,
    /// Why, in one sentence.
    pub why: String,
}
