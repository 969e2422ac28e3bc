//! The parts layers are made of: parameters by their shapes, state in float32 where the kernels keep it so, cache.

use super::config::{Config, Wrong};
use super::layer::{Size, product, sum};

/// Bytes of a recurrent state's element: every kernel keeps it in float32.
const STATE_BYTES: u64 = 4;

/// Embedding, head and last norm.
pub(crate) fn outside(config: &Config) -> Result<Size, Wrong> {
    let hidden = config.number(&["hidden_size", "d_model", "n_embd"])?;
    let vocabulary = config.number(&["vocab_size"])?;
    // Mamba's own configs pad the vocabulary to a multiple of 8 (or what they say).
    let padded = match config.optional(&["pad_vocab_size_multiple"]) {
        Some(multiple @ 1..) => vocabulary.div_ceil(multiple).saturating_mul(multiple),
        _ => vocabulary,
    };
    let table = product(&[padded, hidden]);
    let tied = config.flag("tie_word_embeddings", ties_by_default(config));
    Ok(Size::of(sum(&[table, if tied { 0 } else { table }, hidden])))
}

/// What transformers takes when the config does not say.
fn ties_by_default(config: &Config) -> bool {
    matches!(
        config.text("model_type"),
        Some("mamba" | "falcon_mamba" | "gemma" | "gemma2" | "gemma3_text")
    ) || config.has("ssm_cfg")
}

/// Grouped-query attention: q, k, v, o, with biases where the config has them.
pub(crate) fn attention(config: &Config) -> Result<Size, Wrong> {
    let hidden = config.number(&["hidden_size", "n_embd"])?;
    let heads = config.number(&["num_attention_heads", "n_head"])?;
    let groups = config.optional(&["num_key_value_heads"]).unwrap_or(heads);
    let dim = match config.optional(&["head_dim", "attention_head_dim"]) {
        Some(dim) => dim,
        None => hidden.checked_div(heads).ok_or(Wrong::Key("num_attention_heads".into()))?,
    };
    // Qwen3-Next's query projection makes the output gate as well.
    let gate = if config.text("model_type") == Some("qwen3_next") { 2 } else { 1 };
    let (queries, keys) = (product(&[heads, dim]), product(&[groups, dim]));
    let bias = config.flag("attention_bias", config.text("model_type") == Some("qwen2"));
    let biases = if bias { sum(&[queries, keys, keys]) } else { 0 };
    let normed = matches!(config.text("model_type"), Some("qwen3" | "qwen3_moe" | "qwen3_next"));
    let norms = if normed { product(&[2, dim]) } else { 0 };
    let parameters = sum(&[
        product(&[hidden, queries, gate]),
        product(&[hidden, keys, 2]),
        product(&[queries, hidden]),
        biases,
        norms,
    ]);
    let cache_bytes = product(&[2, keys, config.activation_bytes()]);
    Ok(Size { parameters, cache_bytes, state_bytes: 0 })
}

/// DeepSeek's latent attention: one compressed vector and one shared key part a token.
pub(crate) fn latent_attention(config: &Config) -> Result<Size, Wrong> {
    let hidden = config.number(&["hidden_size"])?;
    let heads = config.number(&["num_attention_heads"])?;
    let rank = config.number(&["kv_lora_rank"])?;
    let nope = config.number(&["qk_nope_head_dim"])?;
    let rope = config.number(&["qk_rope_head_dim"])?;
    let value = config.number(&["v_head_dim"])?;
    let wide = product(&[heads, sum(&[nope, rope])]);
    let queries = match config.optional(&["q_lora_rank"]) {
        Some(rank) => sum(&[product(&[hidden, rank]), rank, product(&[rank, wide])]),
        None => product(&[hidden, wide]),
    };
    let parameters = sum(&[
        queries,
        product(&[hidden, sum(&[rank, rope])]),
        rank,
        product(&[rank, heads, sum(&[nope, value])]),
        product(&[heads, value, hidden]),
    ]);
    let cache_bytes = product(&[sum(&[rank, rope]), config.activation_bytes()]);
    Ok(Size { parameters, cache_bytes, state_bytes: 0 })
}

/// Gated feed-forward: gate, up, down. `matrices` is 2 where there is no gate.
pub(crate) fn feed_forward(hidden: u64, inner: u64, matrices: u64) -> Size {
    Size::of(product(&[hidden, inner, matrices]))
}

/// Experts with their router.
pub(crate) fn experts(hidden: u64, inner: u64, count: u64) -> Size {
    Size::of(sum(&[product(&[count, hidden, inner, 3]), product(&[count, hidden])]))
}

/// The shapes of a Mamba-2 mixer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mamba2 {
    pub(crate) hidden: u64,
    pub(crate) heads: u64,
    pub(crate) head_dim: u64,
    pub(crate) state: u64,
    pub(crate) groups: u64,
    pub(crate) kernel: u64,
    pub(crate) conv_bias: bool,
    pub(crate) proj_bias: bool,
    /// Whether a gated norm stands before the output projection.
    pub(crate) norm: bool,
}

impl Mamba2 {
    /// in_proj makes gate, convolved channels and one step size a head.
    pub(crate) fn size(&self, config: &Config) -> Size {
        let inner = product(&[self.heads, self.head_dim]);
        let channels = sum(&[inner, product(&[2, self.groups, self.state])]);
        let rows = sum(&[inner, channels, self.heads]);
        let bias = |on: bool, count: u64| if on { count } else { 0 };
        let parameters = sum(&[
            product(&[rows, self.hidden]),
            bias(self.proj_bias, sum(&[rows, self.hidden])),
            product(&[channels, self.kernel]),
            bias(self.conv_bias, channels),
            product(&[3, self.heads]),
            bias(self.norm, inner),
            product(&[inner, self.hidden]),
        ]);
        let recurrent = product(&[self.heads, self.head_dim, self.state, STATE_BYTES]);
        Size {
            parameters,
            state_bytes: sum(&[recurrent, convolved(config, channels, self.kernel)]),
            cache_bytes: 0,
        }
    }
}

/// A Mamba-1 mixer with its low-rank step size; Jamba norms the three parts as well.
pub(crate) fn mamba1(
    config: &Config,
    [hidden, inner, state, kernel, rank]: [u64; 5],
    norms: bool,
    (conv_bias, proj_bias): (bool, bool),
) -> Size {
    let bias = |on: bool, count: u64| if on { count } else { 0 };
    let low_rank = sum(&[rank, product(&[2, state])]);
    let parameters = sum(&[
        product(&[hidden, inner, 2]),
        bias(proj_bias, sum(&[product(&[2, inner]), hidden])),
        product(&[inner, kernel]),
        bias(conv_bias, inner),
        product(&[inner, low_rank]),
        product(&[rank, inner]),
        inner,
        product(&[inner, state]),
        inner,
        product(&[inner, hidden]),
        bias(norms, low_rank),
    ]);
    let recurrent = product(&[inner, state, STATE_BYTES]);
    Size {
        parameters,
        state_bytes: sum(&[recurrent, convolved(config, inner, kernel)]),
        cache_bytes: 0,
    }
}

/// Kimi's delta attention: three short convolutions, two low-rank gates, one decay a head.
pub(crate) fn kda(config: &Config, hidden: u64, heads: u64, dim: u64, kernel: u64) -> Size {
    let inner = product(&[heads, dim]);
    let low_rank = sum(&[product(&[hidden, dim]), product(&[dim, inner])]);
    let parameters = sum(&[
        product(&[3, hidden, inner]),
        product(&[3, inner, kernel]),
        product(&[2, low_rank]),
        heads,
        inner,
        product(&[hidden, heads]),
        dim,
        product(&[inner, hidden]),
    ]);
    let recurrent = product(&[heads, dim, dim, STATE_BYTES]);
    let channels = product(&[3, inner]);
    Size {
        parameters,
        state_bytes: sum(&[recurrent, convolved(config, channels, kernel)]),
        cache_bytes: 0,
    }
}

/// Qwen's gated delta net: fewer key heads than value heads, one convolution over all of them.
pub(crate) fn gated_delta_net(config: &Config, hidden: u64) -> Result<Size, Wrong> {
    let keys = config.number(&["linear_num_key_heads"])?;
    let values = config.number(&["linear_num_value_heads"])?;
    let key_dim = config.number(&["linear_key_head_dim"])?;
    let value_dim = config.number(&["linear_value_head_dim"])?;
    let kernel = config.number(&["linear_conv_kernel_dim"])?;
    let (wide_keys, wide_values) = (product(&[keys, key_dim]), product(&[values, value_dim]));
    let channels = sum(&[product(&[2, wide_keys]), wide_values]);
    let parameters = sum(&[
        product(&[hidden, sum(&[channels, wide_values])]),
        product(&[hidden, values, 2]),
        product(&[channels, kernel]),
        product(&[2, values]),
        value_dim,
        product(&[wide_values, hidden]),
    ]);
    let recurrent = product(&[values, key_dim, value_dim, STATE_BYTES]);
    Ok(Size {
        parameters,
        state_bytes: sum(&[recurrent, convolved(config, channels, kernel)]),
        cache_bytes: 0,
    })
}

/// What a causal convolution remembers: all but the newest of the inputs under its kernel.
fn convolved(config: &Config, channels: u64, kernel: u64) -> u64 {
    product(&[channels, kernel.saturating_sub(1), config.activation_bytes()])
}
