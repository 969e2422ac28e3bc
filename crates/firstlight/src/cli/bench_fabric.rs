//! Arguments of `bench fabric`.

use super::{Environment, one_or_more, whole};
use clap::Args;
use ops_cuda::FabricPlan;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct BenchFabric {
    #[command(flatten)]
    pub(crate) environment: Environment,
    /// GPUs by the indices of nvidia-smi, such as 0,1. Default: all working GPUs that this process sees.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32))]
    pub(crate) gpu: Vec<u32>,
    /// Largest transfer in MiB.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=16_384), default_value_t = FabricPlan::LARGEST >> 20)]
    pub(crate) largest: u64,
    /// Time limit for the transfers.
    #[arg(long, value_name = "SECONDS", value_parser = one_or_more::<u64>, default_value_t = 60)]
    pub(crate) budget: u64,
    /// Also run a large matrix product on all GPUs at once for this long, while power, clocks and temperatures are
    /// recorded.
    #[arg(long, value_name = "SECONDS", value_parser = whole, default_value_t = 0)]
    pub(crate) sustain: u64,
    /// Also write gpus.json and fabric.csv.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}
