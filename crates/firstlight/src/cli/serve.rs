//! Arguments of `firstlight serve`, with vLLM's names.

use super::{
    BackendArg, Gpus, ModelName, Split, States, WeightType, gibibytes, one_or_more, share, whole,
};
use clap::Args;
use clap::builder::PossibleValuesParser;

#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) named: ModelName,
    /// Address to listen on. 0.0.0.0 is every address of this machine: set a key then.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 8000)]
    pub(crate) port: u16,
    /// Key that clients have to send as `Authorization: Bearer KEY`. Repeat it for several.
    ///
    /// Without a key every client is served. /health, /ping and / need no key. Unlike an option, the variable is not
    /// visible in process lists.
    #[arg(long, value_name = "KEY", env = "FIRSTLIGHT_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Vec<String>,
    #[command(flatten)]
    pub(crate) cors: Cors,
    /// Model name that clients use. Repeat it for several. Default: MODEL.
    #[arg(long, alias = "alias", value_name = "NAME")]
    pub(crate) served_model_name: Vec<String>,
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
    /// How long open requests may continue after Ctrl-C or SIGTERM; a second signal ends them at once.
    #[arg(long, value_name = "SECONDS", value_parser = whole, default_value_t = 30)]
    pub(crate) shutdown_timeout: u64,
    #[command(flatten)]
    pub(crate) parsers: Parsers,
    #[command(flatten)]
    pub(crate) embeddings: Embeddings,
    #[command(flatten)]
    pub(crate) sizes: Sizes,
}

/// Browser pages of other origins that may use the server (CORS), with vLLM's names.
#[derive(Debug, Args)]
#[command(next_help_heading = "Browsers")]
pub(crate) struct Cors {
    /// Allowed origins, such as `http://localhost:3000`; `*` for all. Separate several with commas, or give a JSON
    /// list.
    ///
    /// Default: with an API key, all; without one, pages that this machine serves, because any other page that a user
    /// visits could use the model. Requests from pages of other origins get status 403.
    #[arg(long, value_name = "ORIGINS")]
    pub(crate) allowed_origins: Option<String>,
    /// HTTP methods that such pages may use; `*` for all.
    #[arg(long, value_name = "METHODS", default_value = "*")]
    pub(crate) allowed_methods: String,
    /// HTTP headers that such pages may send; `*` for all.
    #[arg(long, value_name = "HEADERS", default_value = "*")]
    pub(crate) allowed_headers: String,
    /// Let such pages send cookies and HTTP authentication.
    #[arg(long)]
    pub(crate) allow_credentials: bool,
}

/// Parsers of answers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Tools and reasoning")]
pub(crate) struct Parsers {
    /// Format of the model's tool calls, with vLLM's names. Default: the format in the chat template.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(api::tool_call_parsers()))]
    pub(crate) tool_call_parser: Option<String>,
    /// Format of the model's reasoning, with vLLM's names. Default: the format in the chat template.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(api::reasoning_parsers()))]
    pub(crate) reasoning_parser: Option<String>,
    /// Accepted for vLLM's command lines: tool calls are always parsed.
    #[arg(long)]
    pub(crate) enable_auto_tool_choice: bool,
}

/// Settings of embeddings.
#[derive(Debug, Args)]
#[command(next_help_heading = "Embeddings")]
pub(crate) struct Embeddings {
    /// vLLM's settings of embeddings, a JSON object with `pooling_type` (MEAN, LAST or CLS) and `normalize`. Default:
    /// the sentence-transformers files next to the weights, or else the last token's hidden state, normalized to length
    /// 1.
    #[arg(long, value_name = "JSON")]
    pub(crate) pooler_config: Option<String>,
}

/// Sizes of the caches and batches.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sizes")]
pub(crate) struct Sizes {
    /// Tokens of a request, prompt and answer together. Default: the model's context length, or what fits.
    #[arg(long, short = 'c', aliases = ["ctx-size", "context"], value_name = "TOKENS", value_parser = one_or_more::<u32>)]
    pub(crate) max_model_len: Option<u32>,
    /// Sequences at once. Default: 128 on a GPU, 8 on the CPU, or what fits.
    #[arg(long, aliases = ["parallel", "sequences"], value_name = "N", value_parser = one_or_more::<u32>)]
    pub(crate) max_num_seqs: Option<u32>,
    /// Prompt tokens per step. Default: 512 on the CPU, 8192 on a GPU; fewer while other sequences decode.
    #[arg(long, aliases = ["chunk", "ubatch-size"], value_name = "TOKENS", value_parser = one_or_more::<u32>)]
    pub(crate) max_num_batched_tokens: Option<u32>,
    /// Number of prefixes whose states are cached for requests with the same prefix; 0 for none. Default: 256 on a GPU,
    /// 8 on the CPU, or what fits in an eighth of the memory.
    #[arg(long, value_name = "N", value_parser = whole)]
    pub(crate) prefix_cache_states: Option<u64>,
    /// RAM in GiB for the KV cache of preempted requests, which then need no recomputation, and for evicted states of
    /// the prefix cache; 0 for none. For a GPU it is pinned while no request runs, and otherwise when copies need it.
    /// Default: an eighth of the free RAM, at most 16.
    #[arg(long, value_name = "GIB", value_parser = gibibytes)]
    pub(crate) swap_space: Option<f64>,
    /// The same as --prefix-cache-states 0.
    #[arg(long, conflicts_with = "prefix_cache_states")]
    pub(crate) no_enable_prefix_caching: bool,
    /// Fraction of the requests with a prefix cache hit, from 0 to 1, whose prompt is recomputed and compared: at the
    /// first difference the prefix cache is disabled, which /health reports.
    #[arg(long, value_name = "P", value_parser = share, default_value_t = 0.0, conflicts_with = "no_enable_prefix_caching")]
    pub(crate) verify_cache: f64,
    /// Sequences that may wait in the queue; further requests get status 429.
    #[arg(long, value_name = "N", value_parser = whole, default_value_t = 256)]
    pub(crate) max_num_queued_reqs: u64,
}
