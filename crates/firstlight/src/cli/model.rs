//! Arguments of the commands that make and run models.

use super::BackendArg;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct Synth {
    /// Shape: a published model's, as granite-4.0-h-micro, or a reduced one. Left out: list the shapes.
    #[arg(requires = "output")]
    pub(crate) name: Option<String>,
    /// Folder to write, empty or absent.
    #[arg(value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
    /// Only the first layers.
    #[arg(long, value_name = "N", requires = "name")]
    pub(crate) layers: Option<usize>,
    /// The same seed draws the same weights.
    #[arg(long, default_value_t = 0, requires = "name")]
    pub(crate) seed: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Logits {
    /// A model's folder: config.json and safetensors files.
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// Token ids: 1,2,3.
    #[arg(long, value_name = "ID,..", value_delimiter = ',', required = true)]
    pub(crate) ids: Vec<u32>,
    /// Where the tensor `logits` [tokens, vocabulary] goes, in float32.
    #[arg(short, long, value_name = "OUT.safetensors")]
    pub(crate) output: PathBuf,
    /// Backend.
    #[arg(long, default_value = "cpu")]
    pub(crate) backend: BackendArg,
    /// Tokens of a step. Default: all in one.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) chunk: Option<u32>,
    /// What weights and caches are stored in.
    #[arg(long, value_enum, default_value_t = WeightType::F32)]
    pub(crate) dtype: WeightType,
}

/// Storage types of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WeightType {
    F32,
    Bf16,
}

impl From<WeightType> for models::Storage {
    fn from(dtype: WeightType) -> Self {
        match dtype {
            WeightType::F32 => Self::F32,
            WeightType::Bf16 => Self::Bf16,
        }
    }
}
