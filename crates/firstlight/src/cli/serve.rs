//! Arguments of `firstlight serve`, by vLLM's names.

use super::{BackendArg, Named, Split, States, WeightType, gibibytes, one_or_more, share, whole};
use clap::Args;
use clap::builder::PossibleValuesParser;

#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) named: Named,
    /// Address to listen on. 0.0.0.0 is every address of this machine: then set a key.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 8000)]
    pub(crate) port: u16,
    /// Key that clients have to send as `Authorization: Bearer KEY`. Repeat it for several.
    ///
    /// Without one everybody is answered. /health, /ping and / need no key. The variable is not seen in lists of processes, as an
    /// option is.
    #[arg(long, value_name = "KEY", env = "FIRSTLIGHT_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Vec<String>,
    #[command(flatten)]
    pub(crate) cors: Cors,
    /// Name that clients call the model by. Repeat it for several. Default: MODEL.
    #[arg(long, alias = "alias", value_name = "NAME")]
    pub(crate) served_model_name: Vec<String>,
    /// Where to run.
    #[arg(long, value_enum, default_value_t = BackendArg::Auto)]
    pub(crate) backend: BackendArg,
    /// Storage type of weights and caches.
    #[arg(long, value_enum, default_value_t = WeightType::Bf16)]
    pub(crate) dtype: WeightType,
    #[command(flatten)]
    pub(crate) states: States,
    #[command(flatten)]
    pub(crate) split: Split,
    /// How long open requests may go on after Ctrl-C or SIGTERM.
    #[arg(long, value_name = "SECONDS", value_parser = whole, default_value_t = 30)]
    pub(crate) shutdown_timeout: u64,
    #[command(flatten)]
    pub(crate) parsers: Parsers,
    #[command(flatten)]
    pub(crate) embeddings: Embeddings,
    #[command(flatten)]
    pub(crate) sizes: Sizes,
}

/// Which pages of other origins may use the server from a browser, by vLLM's names.
#[derive(Debug, Args)]
#[command(next_help_heading = "Browsers")]
pub(crate) struct Cors {
    /// Origins whose pages are answered, as `http://localhost:3000`; `*` for all. Several with commas, or as a JSON list.
    ///
    /// Default: with an API key, all; without one, pages that this machine serves, because any other page that somebody visits could
    /// use the model. Requests from pages of other origins get status 403.
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

/// How answers of conversations are parsed.
#[derive(Debug, Args)]
#[command(next_help_heading = "Tools and reasoning")]
pub(crate) struct Parsers {
    /// Format in which the model writes tool calls, by vLLM's names. Default: the one that the chat template teaches.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(api::tool_call_parsers()))]
    pub(crate) tool_call_parser: Option<String>,
    /// Format of the model's reasoning, by vLLM's names. Default: the one that the chat template teaches.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(api::reasoning_parsers()))]
    pub(crate) reasoning_parser: Option<String>,
    /// Accepted for vLLM's command lines: tool calls are always parsed.
    #[arg(long)]
    pub(crate) enable_auto_tool_choice: bool,
}

/// How embeddings are made.
#[derive(Debug, Args)]
#[command(next_help_heading = "Embeddings")]
pub(crate) struct Embeddings {
    /// vLLM's settings of embeddings, a JSON object with `pooling_type` (MEAN, LAST or CLS) and `normalize`. Default: as
    /// sentence-transformers' files next to the weights say, or else the last token's hidden state with length 1.
    #[arg(long, value_name = "JSON")]
    pub(crate) pooler_config: Option<String>,
}

/// What is made room for.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sizes")]
pub(crate) struct Sizes {
    /// Tokens of a request, prompt and answer. Default: what the model was made for, or what fits.
    #[arg(long, short = 'c', aliases = ["ctx-size", "context"], value_name = "TOKENS", value_parser = one_or_more::<u32>)]
    pub(crate) max_model_len: Option<u32>,
    /// Answers at once. Default: 128 on a GPU, 8 on the CPU, or what fits.
    #[arg(long, aliases = ["parallel", "sequences"], value_name = "N", value_parser = one_or_more::<u32>)]
    pub(crate) max_num_seqs: Option<u32>,
    /// Tokens of prompts in one step. Default: 512 on the CPU, 8192 on a GPU; fewer while others decode.
    #[arg(long, aliases = ["chunk", "ubatch-size"], value_name = "TOKENS", value_parser = one_or_more::<u32>)]
    pub(crate) max_num_batched_tokens: Option<u32>,
    /// Beginnings of prompts whose states are kept for requests that begin alike; 0 for none. Default: 256 on a GPU, 8 on the CPU,
    /// or what an eighth of the memory holds.
    #[arg(long, value_name = "N", value_parser = whole)]
    pub(crate) prefix_cache_states: Option<u64>,
    /// RAM for requests that gave their pages to older ones, which then read nothing again, and for states of the prefix cache that
    /// make place for others; 0 for none. For a GPU it is pinned while no request runs, else as copies need it. Default: an eighth of
    /// what is free, 16 at most.
    #[arg(long, value_name = "GIB", value_parser = gibibytes)]
    pub(crate) swap_space: Option<f64>,
    /// The same as --prefix-cache-states 0.
    #[arg(long, conflicts_with = "prefix_cache_states")]
    pub(crate) no_enable_prefix_caching: bool,
    /// Share of the requests that begin with such a state, from 0 to 1, whose prompt is read again to compare: at the first difference
    /// the prefix cache goes off, which /health tells.
    #[arg(long, value_name = "P", value_parser = share, default_value_t = 0.0, conflicts_with = "no_enable_prefix_caching")]
    pub(crate) verify_cache: f64,
    /// Answers that may wait for their turn; beyond them requests get status 429.
    #[arg(long, value_name = "N", value_parser = whole, default_value_t = 256)]
    pub(crate) max_num_queued_reqs: u64,
}
