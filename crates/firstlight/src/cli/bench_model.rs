//! Arguments of `bench model`.

use super::{BackendArg, PythonPeers, WeightType};
use clap::{Args, Subcommand};
use models::SpeedTest;
use std::path::PathBuf;

/// What `bench` times beside kernels.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Time a whole model: prompts read and tokens decoded a second. Its engine is held against float32 on the processor
    /// first, and has no speed where it disagrees.
    Model(BenchModel),
}

#[derive(Debug, Args)]
pub(crate) struct BenchModel {
    /// A model's folder; org/name in the hub's cache; with --random a shape that `synth` lists, or a folder with a config.json.
    #[arg(value_name = "MODEL|NAME")]
    pub(crate) model: PathBuf,
    /// Random weights, which are drawn as they are loaded and never written.
    #[arg(long)]
    pub(crate) random: bool,
    /// Backend.
    #[arg(long, default_value = "cpu")]
    pub(crate) backend: BackendArg,
    /// What weights and caches are stored in.
    #[arg(long, value_enum, default_value_t = WeightType::Bf16)]
    pub(crate) dtype: WeightType,
    /// What to time: pp512 reads a prompt of 512 tokens, tg128 decodes 128, tg128@8192 does so after 8192 others.
    #[arg(
        long,
        value_name = "TEST,..",
        value_delimiter = ',',
        default_value = "pp512,pp4096,tg128,tg128@8192"
    )]
    pub(crate) tests: Vec<SpeedTest>,
    /// Sequences at once.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) sequences: u32,
    /// Only the first layers.
    #[arg(long, value_name = "N", requires = "random")]
    pub(crate) layers: Option<usize>,
    /// Samples of each test, after one that counts as cold.
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeats: u32,
    #[command(flatten)]
    pub(crate) peers: PythonPeers,
    /// Write a run folder: models.json, models.csv, parity.csv, facts.json and the report.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}
