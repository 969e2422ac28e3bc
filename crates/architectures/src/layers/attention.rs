use crate::params::{HeadPairs, MatrixLayout, ParamId, ParamInit, Params, Projection};
use crate::{Config, ConfigError, Rope};

/// Grouped-query attention, with or without rotary embedding.
#[derive(Debug, Clone)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Scale of q k^T.
    pub scale: f64,
    /// Rotary embedding of queries and keys; `None` without positions.
    pub rope: Option<Rope>,
    /// Sliding window: number of tokens that a query attends to, its own included; `None` for all.
    pub window: Option<usize>,
    /// Norms of queries and of keys, before rotary embedding.
    pub norms: Option<[ParamId; 2]>,
    /// Whether the norms are over all heads together instead of over each head.
    pub norms_span_heads: bool,
    /// Whether each head's values have a norm without weights.
    pub value_norm: bool,
    /// Whether values are the projected keys, before their norm.
    pub values_are_keys: bool,
    /// Soft cap of q k^T, `cap tanh(y / cap)`.
    pub softcap: Option<f64>,
    /// Attention sinks: a logit per head that takes part in its softmax without a value.
    pub sinks: Option<ParamId>,
    /// Whether the projection also computes output gates, as many as queries.
    pub gated: bool,
    /// Queries, output gates if any, keys and values, stacked.
    pub qkv: Projection,
    /// Output.
    pub out: Projection,
    /// Multipliers of the input and of the output.
    pub multipliers: [f64; 2],
}

/// The projection of output gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    None,
    /// The query projection: each head's queries are followed by its gates.
    Queries,
    /// `gate_proj`.
    Separate,
}

/// The shapes and options of an [`Attention`].
#[derive(Debug, Clone)]
pub(crate) struct AttentionShape {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) scale: f64,
    pub(crate) rope: Option<Rope>,
    /// Whether the rotation turns adjacent channels of the checkpoint together: rows of queries and keys are reordered.
    pub(crate) rotates_pairs: bool,
    pub(crate) window: Option<usize>,
    pub(crate) softcap: Option<f64>,
    /// Whether heads have sinks.
    pub(crate) sinks: bool,
    /// Multipliers of the input and of the output.
    pub(crate) multipliers: [f64; 2],
    /// The projection of output gates.
    pub(crate) gate: Gate,
    /// Whether queries and keys have norms.
    pub(crate) qk_norm: bool,
    /// Whether these norms are over all heads together.
    pub(crate) norms_span_heads: bool,
    /// Whether each head's values have a norm without weights.
    pub(crate) value_norm: bool,
    /// Whether values are the projected keys.
    pub(crate) values_are_keys: bool,
    /// Whether q, k and v, and whether the output, have biases.
    pub(crate) biases: [bool; 2],
    /// Whether q, k and v are one parameter.
    pub(crate) fused: bool,
    /// Names of the output projection and of the norms of queries and keys.
    pub(crate) names: [&'static str; 3],
}

impl AttentionShape {
    /// Reads the keys that nearly all configs share.
    pub(crate) fn of(config: &Config) -> Result<Self, ConfigError> {
        let hidden = config.count(config.present_key(&["hidden_size", "n_embd"]))?;
        let heads_key = config.present_key(&["num_attention_heads", "n_head"]);
        let heads = config.count(heads_key)?;
        const KV_HEADS: &str = "num_key_value_heads";
        let kv_heads = config.count_or(KV_HEADS, heads)?;
        if kv_heads == 0 || heads % kv_heads != 0 {
            return Err(config.wrong(KV_HEADS, format!("a divisor of the {heads} heads")));
        }
        let dim_key = config.present_key(&["head_dim", "attention_head_dim"]);
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
            rotates_pairs: false,
            window: None,
            softcap: None,
            sinks: false,
            multipliers: [1.0; 2],
            gate: Gate::None,
            qk_norm: false,
            norms_span_heads: false,
            value_norm: false,
            values_are_keys: false,
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
        let turned = shape.rope.as_ref().filter(|_| shape.rotates_pairs);
        let pairs = turned.map(|rope| HeadPairs { head_dim, first: 0, width: rope.width });
        let layout = MatrixLayout { pairs, ..MatrixLayout::default() };
        let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
        let [bias, out_bias] = shape.biases;
        let mut project = |name: &str, outputs, inputs, bias: bool| {
            let name = format!("{prefix}.{name}_proj");
            let made = params.projection(format!("{name}.weight"), outputs, inputs);
            let bias = bias.then(|| params.bias(format!("{name}.bias"), outputs));
            if name.ends_with(".q_proj") || name.ends_with(".k_proj") {
                let weight = made.rows[0].param;
                bias.into_iter().chain([weight]).for_each(|param| params.set_layout(param, layout));
            }
            Projection { bias: bias.into_iter().collect(), ..made }
        };
        let made = if shape.gate == Gate::Queries { 2 * queries } else { queries };
        let qkv = match shape.fused {
            true => project("qkv", made + 2 * keys, hidden, bias),
            false => {
                let q = project("q", made, hidden, bias);
                let q = match shape.gate {
                    Gate::None => q,
                    Gate::Queries => q.pieces([0, 1].into_iter().flat_map(|gates| {
                        (0..heads).map(move |head| ((2 * head + gates) * head_dim, head_dim))
                    })),
                    Gate::Separate => {
                        Projection::stacked([q, project("gate", queries, hidden, bias)])
                    }
                };
                let names: &[_] = if shape.values_are_keys { &["k"] } else { &["k", "v"] };
                let others = names.iter().map(|name| project(name, keys, hidden, bias));
                Projection::stacked([q].into_iter().chain(others))
            }
        };
        let [out, norms @ ..] = shape.names;
        let out = project(out, hidden, queries, out_bias);
        let widths = if shape.norms_span_heads { [queries, keys] } else { [head_dim; 2] };
        let mut norm =
            |at: usize| params.norm(format!("{prefix}.{}.weight", norms[at]), widths[at]);
        let norms = shape.qk_norm.then(|| [norm(0), norm(1)]);
        norms.iter().flatten().for_each(|norm| params.set_layout(*norm, layout));
        // In the magnitude of a window's logits together, so that ignoring them gives a wrong result.
        let sink =
            || params.add(format!("{prefix}.sinks"), &[heads], ParamInit::Uniform(-1.0, 3.0));
        let sinks = shape.sinks.then(sink);
        let AttentionShape { rope, window, softcap, norms_span_heads, multipliers, .. } = shape;
        let AttentionShape { value_norm, values_are_keys, .. } = shape;
        Self {
            heads,
            kv_heads,
            head_dim,
            scale,
            rope,
            window,
            softcap,
            norms,
            norms_span_heads,
            value_norm,
            values_are_keys,
            sinks,
            gated: shape.gate != Gate::None,
            qkv,
            out,
            multipliers,
        }
    }
}
