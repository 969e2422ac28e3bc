//! Arguments of `bench model`.

use super::{
    BackendArg, BenchFabric, Gpus, PythonPeers, Split, States, WeightFormat, WeightType, number,
    one_or_more,
};
use clap::{Args, Subcommand};
use models::SpeedTest;
use std::path::PathBuf;

/// Benchmarks of `bench` other than kernels.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Time a whole model: tokens per second for prompts and for decoding.
    ///
    /// The engine is verified against float32 on the processor first; a model that disagrees is not timed.
    Model(BenchModel),
    /// Measure transfers between the GPUs of this machine: copies of each pair, and NCCL's collectives.
    ///
    /// Every result is compared with the expected data; a wrong result gets no rate. `check` measures the same as part
    /// of its run.
    Fabric(BenchFabric),
}

#[derive(Debug, Args)]
pub(crate) struct BenchModel {
    /// A model's folder, or org/name in the Hugging Face cache; with --random, a shape that `synth` lists.
    #[arg(value_name = "MODEL|NAME")]
    pub(crate) model: PathBuf,
    /// Use random weights; nothing is written to disk.
    #[arg(long)]
    pub(crate) random: bool,
    /// The device to run on.
    #[arg(long, value_enum, default_value_t = BackendArg::Auto)]
    pub(crate) backend: BackendArg,
    /// Storage type of weights and caches.
    #[arg(long, value_enum, default_value_t = WeightType::Bf16)]
    pub(crate) dtype: WeightType,
    #[command(flatten)]
    pub(crate) states: States,
    #[command(flatten)]
    pub(crate) gpus: Gpus,
    #[command(flatten)]
    pub(crate) split: Split,
    /// Tests to time: pp512 computes a prompt of 512 tokens, tg128 decodes 128 tokens, tg128@8192 decodes them after
    /// 8192 others. Default: pp512,pp4096,tg128,tg128@8192, as far as the model's context allows.
    #[arg(long, value_name = "TEST,..", value_delimiter = ',')]
    pub(crate) tests: Vec<SpeedTest>,
    /// Sequences at once.
    #[arg(long = "max-num-seqs", short = 'b', aliases = ["sequences", "batch", "parallel"], value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) sequences: u32,
    /// Sample tokens at this temperature while decoding; 0 takes the most likely one.
    #[arg(long, value_name = "X", value_parser = number, default_value_t = 0.0)]
    pub(crate) temperature: f64,
    /// Sample among the most likely tokens whose probabilities add up to P.
    #[arg(long, value_name = "P", value_parser = number, default_value_t = 1.0)]
    pub(crate) top_p: f64,
    /// Only the first N layers.
    #[arg(long, value_name = "N", value_parser = one_or_more::<usize>, requires = "random")]
    pub(crate) layers: Option<usize>,
    /// Store the random weights of projections in this format.
    #[arg(long, value_enum, requires = "random")]
    pub(crate) weights: Option<WeightFormat>,
    /// Samples of each test, after one cold run.
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = one_or_more::<u32>)]
    pub(crate) repeats: u32,
    #[command(flatten)]
    pub(crate) peers: PythonPeers,
    /// Also write a run folder: models.json, models.csv, parity.csv, facts.json and the report.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}
