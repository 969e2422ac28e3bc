use crate::params::{Draw, ParamId, Params, Projection};
use crate::{Config, ConfigError, Rope};

/// Grouped-query attention, with rotated queries and keys or without.
#[derive(Debug, Clone)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Factor of q k^T.
    pub scale: f64,
    /// The rotation of queries and keys; none where position is not embedded.
    pub rope: Option<Rope>,
    /// Tokens that a query sees, its own the last of them; none: all before it.
    pub window: Option<usize>,
    /// Norms of each head of the queries and of the keys, before they are rotated.
    pub norms: Option<[ParamId; 2]>,
    /// A logit of each head that takes part in its softmax, and has no value.
    pub sinks: Option<ParamId>,
    /// Whether the projection makes gates of the output too, as many as queries.
    pub gated: bool,
    /// Queries, gates of the output where there are any, keys and values, stacked.
    pub qkv: Projection,
    /// Output.
    pub out: Projection,
    /// Factors on what is read and on what is added.
    pub factors: [f64; 2],
}

/// The shapes of an [`Attention`], and what it has besides.
#[derive(Debug, Clone)]
pub(crate) struct AttentionShape {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) scale: f64,
    pub(crate) rope: Option<Rope>,
    pub(crate) window: Option<usize>,
    /// Whether each head has a sink.
    pub(crate) sinks: bool,
    /// Factors on what is read and on what is added.
    pub(crate) factors: [f64; 2],
    /// Whether the query projection makes gates of the output as well.
    pub(crate) gated: bool,
    /// Whether queries and keys have norms.
    pub(crate) normed: bool,
    /// Whether q, k and v, and whether the output, have biases.
    pub(crate) biases: [bool; 2],
    /// Whether q, k and v are one parameter.
    pub(crate) fused: bool,
    /// What the projection of the output and the norms of queries and keys are called.
    pub(crate) names: [&'static str; 3],
}

impl AttentionShape {
    /// Grouped-query attention by the keys that nearly all configs have.
    pub(crate) fn of(config: &Config) -> Result<Self, ConfigError> {
        let hidden = config.count(config.spelled(&["hidden_size", "n_embd"]))?;
        let heads_key = config.spelled(&["num_attention_heads", "n_head"]);
        let heads = config.count(heads_key)?;
        const KV_HEADS: &str = "num_key_value_heads";
        let kv_heads = config.count_or(KV_HEADS, heads)?;
        if kv_heads == 0 || heads % kv_heads != 0 {
            return Err(config.wrong(KV_HEADS, format!("a divisor of the {heads} heads")));
        }
        let dim_key = config.spelled(&["head_dim", "attention_head_dim"]);
        let head_dim = match config.count_or(dim_key, hidden / heads)? {
            0 => return Err(config.wrong(heads_key, "at most hidden_size")),
            dim => dim,
        };
        Ok(Self {
            hidden,
            heads,
            kv_heads,
            head_dim,
            scale: (head_dim as f64).powf(-0.5),
            rope: None,
            window: None,
            sinks: false,
            factors: [1.0; 2],
            gated: false,
            normed: false,
            biases: [config.flag_or("attention_bias", false)?; 2],
            fused: false,
            names: ["o", "q_norm", "k_norm"],
        })
    }
}

impl Attention {
    /// Declares the parameters under `prefix`.
    pub(crate) fn declare(params: &mut Params, prefix: &str, shape: AttentionShape) -> Self {
        let AttentionShape { hidden, heads, kv_heads, head_dim, scale, .. } = shape;
        let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
        let [bias, out_bias] = shape.biases;
        let mut project = |name: &str, outputs, inputs, bias: bool| {
            let name = format!("{prefix}.{name}_proj");
            let made = params.projection(format!("{name}.weight"), outputs, inputs);
            let bias = bias.then(|| params.bias(format!("{name}.bias"), outputs));
            Projection { bias: bias.into_iter().collect(), ..made }
        };
        let made = if shape.gated { 2 * queries } else { queries };
        let qkv = match shape.fused {
            true => project("qkv", made + 2 * keys, hidden, bias),
            false => {
                let q = project("q", made, hidden, bias);
                // Behind each head's queries are its gates.
                let q = match shape.gated {
                    true => q.pieces([0, 1].into_iter().flat_map(|gates| {
                        (0..heads).map(move |head| ((2 * head + gates) * head_dim, head_dim))
                    })),
                    false => q,
                };
                let [k, v] = ["k", "v"].map(|name| project(name, keys, hidden, bias));
                Projection::stacked([q, k, v])
            }
        };
        let [out, norms @ ..] = shape.names;
        let out = project(out, hidden, queries, out_bias);
        let mut norm = |name| params.norm(format!("{prefix}.{name}.weight"), head_dim);
        let norms = shape.normed.then(|| norms.map(&mut norm));
        // As large as the logits of a window's keys together, so that a forward pass without them is a wrong one.
        let sink = || params.add(format!("{prefix}.sinks"), &[heads], Draw::Uniform(-1.0, 3.0));
        let sinks = shape.sinks.then(sink);
        let AttentionShape { rope, window, gated, factors, .. } = shape;
        Self {
            heads,
            kv_heads,
            head_dim,
            scale,
            rope,
            window,
            norms,
            sinks,
            gated,
            qkv,
            out,
            factors,
        }
    }
}
