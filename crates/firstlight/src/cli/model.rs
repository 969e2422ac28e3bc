//! Arguments of the commands that make and run models.

use super::{BackendArg, Waiting};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Which model.
#[derive(Debug, Args)]
pub(crate) struct Named {
    /// A model's folder, or for `fit` its config.json alone; or org/name in the hub's cache.
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// Fetch a model named org/name from the hub into its cache first: what is not there of its newest revision.
    ///
    /// HF_ENDPOINT, HF_TOKEN, HF_HUB_CACHE, HF_HOME and HF_HUB_OFFLINE are honoured.
    #[arg(long)]
    pub(crate) download: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Fit {
    #[command(flatten)]
    pub(crate) named: Named,
    /// Tokens of each sequence.
    #[arg(long, value_name = "TOKENS", default_value_t = 4096)]
    pub(crate) context: u64,
    /// Sequences at once.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) batch: u64,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

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
pub(crate) struct Convert {
    #[command(flatten)]
    pub(crate) named: Named,
    /// Folder to write, empty or absent.
    #[arg(value_name = "OUT", required_unless_present = "show_map")]
    pub(crate) output: Option<PathBuf>,
    /// Whose names the tensors get: hf, as published; fla-kda, the KDA layers as flash-linear-attention's.
    #[arg(long, value_enum)]
    pub(crate) to: Layout,
    /// Go on in a folder that an earlier run left: what is proven whole by its hash is taken up.
    #[arg(long, conflicts_with = "show_map")]
    pub(crate) resume: bool,
    /// Show what each tensor becomes, and write nothing.
    #[arg(long, conflicts_with = "output")]
    pub(crate) show_map: bool,
}

/// Layouts of a checkpoint's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layout {
    Hf,
    FlaKda,
}

impl From<Layout> for models::Layout {
    fn from(layout: Layout) -> Self {
        match layout {
            Layout::Hf => Self::Hf,
            Layout::FlaKda => Self::FlaKda,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Logits {
    #[command(flatten)]
    pub(crate) named: Named,
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

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) named: Named,
    /// Text to continue; several run at once.
    #[arg(short, long, value_name = "TEXT", required_unless_present_any = ["chat", "ids"])]
    pub(crate) prompt: Vec<String>,
    /// A question to answer, by the model's chat template.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["prompt", "ids"])]
    pub(crate) chat: Option<String>,
    /// Token ids to continue, for a model without a tokenizer: 1,2,3.
    #[arg(long, value_name = "ID,..", value_delimiter = ',', conflicts_with = "prompt")]
    pub(crate) ids: Vec<u32>,
    /// Most tokens to add.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    pub(crate) tokens: usize,
    /// Backend.
    #[arg(long, default_value = "cpu")]
    pub(crate) backend: BackendArg,
    /// What weights and caches are stored in.
    #[arg(long, value_enum, default_value_t = WeightType::Bf16)]
    pub(crate) dtype: WeightType,
    /// Tokens of a prompt that a step takes. Default: 512 on the CPU, 8192 on a GPU.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) chunk: Option<u32>,
    #[command(flatten)]
    pub(crate) choice: Choice,
}

/// How the next token is chosen.
#[derive(Debug, Args)]
#[command(next_help_heading = "How tokens are chosen")]
pub(crate) struct Choice {
    /// 0 takes the likeliest token.
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub(crate) temperature: f64,
    /// Only this many likeliest tokens.
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<usize>,
    /// Only the likeliest tokens that have this probability together.
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub(crate) top_p: f64,
    /// Only tokens at least this times as likely as the likeliest.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub(crate) min_p: f64,
    /// Makes tokens that were there already less likely; 1 does not.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub(crate) repetition_penalty: f64,
    /// The same seed chooses the same tokens.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Text that ends an answer and is not shown.
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Tokens that end it. Default: those the model's files name.
    #[arg(long, value_name = "ID,..", value_delimiter = ',')]
    pub(crate) stop_ids: Option<Vec<u32>>,
}

impl From<&Choice> for models::Sampling {
    fn from(choice: &Choice) -> Self {
        Self {
            repetition_penalty: choice.repetition_penalty,
            temperature: choice.temperature,
            top_k: choice.top_k,
            top_p: choice.top_p,
            min_p: choice.min_p,
            seed: choice.seed,
        }
    }
}
