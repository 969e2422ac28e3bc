//! Arguments of `firstlight serve`, by vLLM's names.

use super::{BackendArg, Named, Split, States, WeightType, gibibytes, one_or_more, share, whole};
use clap::Args;

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
    pub(crate) sizes: Sizes,
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
    /// Beginnings of prompts whose states are kept for requests that begin alike; 0 for none. Default: 64 on a GPU, 8 on the CPU,
    /// or what an eighth of the memory holds.
    #[arg(long, value_name = "N", value_parser = whole)]
    pub(crate) prefix_cache_states: Option<u64>,
    /// RAM for requests that gave their pages to older ones, which then read nothing again, and for states of the prefix cache that
    /// make place for others; 0 for none. For a GPU it is pinned beside the first requests, a piece at a time. Default: an eighth of
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
