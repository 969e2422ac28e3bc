//! Arguments of the commands that create and run models.

use super::{BackendArg, DriverTimeout, States, byte_size, number, one_or_more, token, whole};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// The model.
#[derive(Debug, Clone, Args)]
pub(crate) struct ModelName {
    /// A model's folder, a GGUF file, or org/name in the Hugging Face cache.
    ///
    /// org/name@REVISION is a branch, a tag or a commit of it; org/name:FILE.gguf, or org/name:Q4_K_M, one of its GGUF files.
    #[arg(value_name = "MODEL")]
    pub(crate) model: PathBuf,
    /// First download the files of org/name that the cache lacks from the Hugging Face hub.
    ///
    /// HF_ENDPOINT, HF_TOKEN, HF_HUB_CACHE, HF_HOME and HF_HUB_OFFLINE are honoured.
    #[arg(long)]
    pub(crate) download: bool,
}

/// The GPUs that a command runs on.
#[derive(Debug, Clone, Args)]
pub(crate) struct Gpus {
    /// GPUs by the indices of nvidia-smi, such as 0,1. Default: those in CUDA_VISIBLE_DEVICES.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32))]
    pub(crate) gpu: Vec<u32>,
}

/// Tensor parallelism.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Split {
    /// Split the model over N processes of this host (tensor parallel): each computes its share of heads, channels and
    /// experts; on GPUs, one GPU per process
    #[arg(long, alias = "tensor-parallel-size", value_name = "N", value_parser = one_or_more::<usize>, default_value_t = 1)]
    pub(crate) tp: usize,
}

/// Pipeline parallelism.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Stages {
    /// Split the layers over N processes on CPUs (pipeline parallel): those of srun, mpirun or torchrun, one on each of
    /// N hosts, or else N of this host.
    #[arg(long, alias = "pipeline-parallel-size", value_name = "N", value_parser = one_or_more::<usize>, default_value_t = 1, conflicts_with = "tp")]
    pub(crate) pp: usize,
}

/// Commands for a model's files.
#[derive(Debug, Args)]
pub(crate) struct ModelFiles {
    #[command(subcommand)]
    pub(crate) command: ModelCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Quantize a model's weights, and show the error.
    ///
    /// Projections are rounded to nearest: float8 with one scale per row, integers with one scale per 128 columns, in
    /// the compressed-tensors format. The head, the embedding and routers keep their type.
    Quantize(Quantize),
    /// Rename a checkpoint's tensors to another layout, reversibly.
    Convert(Convert),
    /// Write a model with random weights, for tests and benchmarks.
    ///
    /// Without an argument: lists the shapes.
    Synth(Synth),
    /// Write a model's logits for given tokens.
    Logits(Logits),
}

#[derive(Debug, Args)]
pub(crate) struct Fit {
    /// A model's folder, its config.json, a GGUF file, org/name in the Hugging Face cache, or a shape that `model synth` lists.
    ///
    /// org/name@REVISION is a branch, a tag or a commit of it; org/name:FILE.gguf, or org/name:Q4_K_M, one of its GGUF files.
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// First download the files of org/name that the cache lacks from the Hugging Face hub.
    #[arg(long)]
    download: bool,
    /// Tokens per sequence. Default: 4096, or the model's limit if that is lower.
    #[arg(long = "max-model-len", short = 'c', aliases = ["context", "ctx-size"], value_name = "TOKENS", value_parser = one_or_more::<u64>)]
    pub(crate) context: Option<u64>,
    /// Sequences at once.
    #[arg(long = "max-num-seqs", short = 'b', aliases = ["batch", "sequences", "parallel"], value_name = "N", value_parser = one_or_more::<u64>, default_value_t = 1)]
    pub(crate) batch: u64,
    /// Another machine by name: rtx4090, l4, a100, h200 and others that `plan` knows.
    #[arg(long, value_name = "NAME")]
    pub(crate) machine: Option<String>,
    /// A GPU with this much memory: 24GiB.
    #[arg(long, value_name = "SIZE", value_parser = byte_size)]
    pub(crate) gpu_memory: Option<u64>,
    /// Count the weights as `model quantize` would store them.
    #[arg(long, value_enum)]
    pub(crate) weights: Option<WeightFormat>,
    #[command(flatten)]
    pub(crate) states: States,
    #[command(flatten)]
    pub(crate) split: Split,
    #[command(flatten)]
    pub(crate) waiting: DriverTimeout,
}

impl Fit {
    /// The model.
    pub(crate) fn named(&self) -> ModelName {
        ModelName { model: self.model.clone(), download: self.download }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Synth {
    /// A published model's shape, such as granite-4.0-h-micro, a reduced one, or a config.json. Without it: lists the shapes.
    #[arg(requires = "output")]
    pub(crate) name: Option<String>,
    /// Folder to write, empty or new.
    #[arg(value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
    /// Only the first N layers.
    #[arg(long, value_name = "N", value_parser = one_or_more::<usize>, requires = "name")]
    pub(crate) layers: Option<usize>,
    /// Seed of the random weights.
    #[arg(long, value_parser = whole, default_value_t = 0, requires = "name")]
    pub(crate) seed: u64,
    /// Store the weights of projections in this format.
    #[arg(long, value_enum, requires = "name")]
    pub(crate) weights: Option<WeightFormat>,
}

/// Storage formats of quantized projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WeightFormat {
    /// float8 E4M3 with one scale per row, as in compressed-tensors.
    Fp8,
    /// 8-bit integers with one scale per 128 columns, packed as in compressed-tensors.
    Int8,
    /// 4-bit integers with one scale per 128 columns, packed as in compressed-tensors.
    Int4,
}

impl From<WeightFormat> for models::QuantizedFormat {
    fn from(weights: WeightFormat) -> Self {
        match weights {
            WeightFormat::Fp8 => Self::Fp8,
            WeightFormat::Int8 => Self::Int8,
            WeightFormat::Int4 => Self::Int4,
        }
    }
}

impl WeightFormat {
    /// The config of a model with such weights.
    pub(crate) fn of(self, config: models::Config) -> Result<models::Config, models::ModelError> {
        models::QuantizedFormat::from(self).of(config)
    }

    /// The format in prose.
    pub(crate) fn prose(self) -> &'static str {
        match self {
            Self::Fp8 => "float8",
            Self::Int8 => "8-bit integers",
            Self::Int4 => "4-bit integers",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Quantize {
    #[command(flatten)]
    pub(crate) named: ModelName,
    /// Folder to write, empty or new.
    #[arg(value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// Target format.
    #[arg(long, value_enum)]
    pub(crate) to: WeightFormat,
}

#[derive(Debug, Args)]
pub(crate) struct Convert {
    #[command(flatten)]
    pub(crate) named: ModelName,
    /// Folder to write, empty or new.
    #[arg(value_name = "OUT", required_unless_present = "show_map")]
    pub(crate) output: Option<PathBuf>,
    /// Target names: hf, as published; fla-kda, KDA layers as in flash-linear-attention.
    #[arg(long, value_enum)]
    pub(crate) to: Layout,
    /// Continue in a folder that an interrupted run left; complete files are kept.
    #[arg(long, conflicts_with = "show_map")]
    pub(crate) resume: bool,
    /// Show the new name of each tensor, and write nothing.
    #[arg(long, conflicts_with = "output")]
    pub(crate) show_map: bool,
}

/// Layouts of a checkpoint's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layout {
    Hf,
    FlaKda,
}

impl From<Layout> for models::CheckpointLayout {
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
    pub(crate) named: ModelName,
    /// Token ids: 1,2,3.
    #[arg(long, value_name = "ID,..", value_parser = token, value_delimiter = ',', required = true)]
    pub(crate) ids: Vec<u32>,
    /// File for the tensor `logits` [tokens, vocabulary], in float32.
    #[arg(short, long, value_name = "OUT.safetensors")]
    pub(crate) output: PathBuf,
    /// The device to run on.
    #[arg(long, value_enum, default_value_t = BackendArg::Auto)]
    pub(crate) backend: BackendArg,
    /// Tokens per step. Default: all in one.
    #[arg(long = "max-num-batched-tokens", aliases = ["chunk", "ubatch-size"], value_name = "TOKENS", value_parser = one_or_more::<u32>)]
    pub(crate) chunk: Option<u32>,
    /// Storage type of weights and caches.
    #[arg(long, value_enum, default_value_t = WeightType::F32)]
    pub(crate) dtype: WeightType,
    #[command(flatten)]
    pub(crate) states: States,
    #[command(flatten)]
    pub(crate) gpus: Gpus,
    #[command(flatten)]
    pub(crate) split: Split,
    #[command(flatten)]
    pub(crate) stages: Stages,
}

/// Storage types of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WeightType {
    #[value(aliases = ["float32", "float", "fp32"])]
    F32,
    #[value(alias = "bfloat16")]
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
    pub(crate) named: ModelName,
    /// A message to answer with the model's chat template, or text to continue if the model has none.
    ///
    /// Without it and without -p, --chat or --ids, it is read from standard input; on a terminal, a chat starts.
    #[arg(value_name = "TEXT", conflicts_with_all = ["prompt", "chat", "ids"])]
    pub(crate) text: Vec<String>,
    /// Text to continue; - reads it from standard input. Repeat -p to run several at once.
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) prompt: Vec<String>,
    /// A question to answer with the model's chat template.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with_all = ["prompt", "ids"])]
    pub(crate) chat: Option<String>,
    /// System message. Needs a chat template.
    #[arg(long, alias = "system-prompt", value_name = "TEXT", allow_hyphen_values = true, conflicts_with_all = ["prompt", "ids"])]
    pub(crate) system: Option<String>,
    /// Functions that the model may call: a JSON list of their schemas in OpenAI's format. Needs a chat template.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "ids"])]
    pub(crate) tools: Option<PathBuf>,
    /// Token ids to continue, for a model without a tokenizer: 1,2,3.
    #[arg(long, value_name = "ID,..", value_parser = token, value_delimiter = ',', conflicts_with = "prompt")]
    pub(crate) ids: Vec<u32>,
    /// Largest number of tokens to generate. Default: 128, or the rest of the context in a chat.
    #[arg(short = 'n', long = "max-tokens", aliases = TOKENS_ALIASES, value_name = "N", value_parser = one_or_more::<usize>)]
    pub(crate) tokens: Option<usize>,
    /// Maximum tokens of a prompt and its answer. Default: the model's limit.
    #[arg(long = "max-model-len", short = 'c', aliases = ["context", "ctx-size"], value_name = "TOKENS", value_parser = one_or_more::<usize>)]
    pub(crate) context: Option<usize>,
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
    #[command(flatten)]
    pub(crate) stages: Stages,
    /// Show the parts of the time to the first token, and measure the memory bandwidth that limits decoding.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Print only the text: no device, no statistics.
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Recompute prompt and answer in one prefill step, and compare its logits with those of decoding. Exit 1 if they
    /// differ.
    #[arg(long)]
    pub(crate) verify: bool,
    /// Prompt tokens per step, of all prompts. Default: 512 on the CPU, 8192 on a GPU; fewer while others decode.
    #[arg(long = "max-num-batched-tokens", aliases = ["chunk", "ubatch-size"], value_name = "TOKENS", value_parser = one_or_more::<u32>)]
    pub(crate) chunk: Option<u32>,
    #[command(flatten)]
    pub(crate) choice: Choice,
}

impl Run {
    /// The chat that `run` starts on a terminal without a prompt.
    ///
    /// # Errors
    /// The name of an option that a chat does not have.
    pub(crate) fn to_chat(&self) -> Result<Chat, &'static str> {
        let only_run = [
            (self.stages.pp > 1, "--pp"),
            (self.verify, "--verify"),
            (self.verbose, "--verbose"),
            (self.tools.is_some(), "--tools"),
            (self.chunk.is_some(), "--max-num-batched-tokens"),
        ];
        if let Some((_, option)) = only_run.into_iter().find(|(given, _)| *given) {
            return Err(option);
        }
        Ok(Chat {
            named: self.named.clone(),
            system: self.system.clone(),
            quiet: self.quiet,
            tokens: self.tokens,
            context: self.context,
            backend: self.backend,
            dtype: self.dtype,
            states: self.states,
            gpus: self.gpus.clone(),
            split: self.split,
            choice: self.choice.clone(),
        })
    }
}

#[derive(Debug, Args)]
pub(crate) struct Chat {
    #[command(flatten)]
    pub(crate) named: ModelName,
    /// System message.
    #[arg(long, alias = "system-prompt", value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) system: Option<String>,
    /// Print only the answers: no device, no statistics.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Largest number of tokens of an answer. Default: the rest of the context.
    #[arg(short = 'n', long = "max-tokens", aliases = TOKENS_ALIASES, value_name = "N", value_parser = one_or_more::<usize>)]
    pub(crate) tokens: Option<usize>,
    /// Context length of the conversation. Default: 16384, or the model's limit if that is lower.
    #[arg(long = "max-model-len", short = 'c', aliases = ["context", "ctx-size"], value_name = "TOKENS", value_parser = one_or_more::<usize>)]
    pub(crate) context: Option<usize>,
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
    #[command(flatten)]
    pub(crate) choice: Choice,
}

/// Other programs' names for the length of an answer, and firstlight's former name.
const TOKENS_ALIASES: [&str; 6] =
    ["tokens", "n-predict", "predict", "num-predict", "max-new-tokens", "max-completion-tokens"];

/// Sampling of the next token.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct Choice {
    /// 0 always takes the most likely token.
    #[arg(long, alias = "temp", value_name = "X", value_parser = number, default_value_t = 0.0)]
    pub(crate) temperature: f64,
    /// Sample among the K most likely tokens.
    #[arg(long, value_name = "K", value_parser = one_or_more::<usize>)]
    pub(crate) top_k: Option<usize>,
    /// Sample among the most likely tokens whose probabilities add up to P.
    #[arg(long, value_name = "P", value_parser = number, default_value_t = 1.0)]
    pub(crate) top_p: f64,
    /// Sample among tokens at least P times as likely as the most likely one.
    #[arg(long, value_name = "P", value_parser = number, default_value_t = 0.0)]
    pub(crate) min_p: f64,
    /// Make tokens that occurred before less likely; 1 changes nothing.
    #[arg(long, alias = "repeat-penalty", value_name = "X", value_parser = number, default_value_t = 1.0)]
    pub(crate) repetition_penalty: f64,
    /// Make tokens less likely by how often they are in the answer; 0 changes nothing.
    #[arg(long, value_name = "X", value_parser = number, default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) frequency_penalty: f64,
    /// Make tokens less likely that are in the answer, however often; 0 changes nothing.
    #[arg(long, value_name = "X", value_parser = number, default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) presence_penalty: f64,
    /// Seed of sampling.
    #[arg(long, short = 's', value_parser = whole, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Text that ends the answer and is not shown.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
    /// Token ids that end the answer. Default: those in the model's files.
    #[arg(long, value_name = "ID,..", value_parser = token, value_delimiter = ',')]
    pub(crate) stop_ids: Option<Vec<u32>>,
}

impl From<&Choice> for models::Sampling {
    fn from(choice: &Choice) -> Self {
        Self {
            repetition_penalty: choice.repetition_penalty,
            frequency_penalty: choice.frequency_penalty,
            presence_penalty: choice.presence_penalty,
            temperature: choice.temperature,
            top_k: choice.top_k,
            top_p: choice.top_p,
            min_p: choice.min_p,
            seed: choice.seed,
            ..Self::default()
        }
    }
}
