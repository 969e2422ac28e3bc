use crate::params::{HeadPairs, MatrixLayout, ParamId, Params, Projection, RowRange};
use crate::{Config, ConfigError, Rope};

/// Multi-head latent attention (MLA): keys and values of all heads are derived from one latent vector per token, which
/// the cache contains together with a key part that all heads share.
#[derive(Debug, Clone)]
pub struct LatentAttention {
    /// The shapes.
    pub shape: LatentShape,
    /// Queries of all heads or their latent vector, then the latent vector and the shared key part: everything that
    /// reads the layer's input.
    pub project: Projection,
    /// Norm of the queries' latent vector and the projection to queries; `None` if queries have no latent vector.
    pub query_up: Option<(ParamId, Projection)>,
    /// Rotary embedding of each head's last channels and of the shared key part.
    pub rope: Option<Rope>,
    /// Scale of q k^T.
    pub scale: f64,
    /// `[rank]`, the norm of the latent vector.
    pub latent_norm: ParamId,
    /// Its epsilon, which differs from the model's.
    pub latent_eps: f64,
    /// For each head its keys' rows `[nope, rank]`.
    pub key_up: Vec<RowRange>,
    /// For each head its values' rows `[value, rank]`.
    pub value_up: Vec<RowRange>,
    /// Output projection.
    pub out: Projection,
}

/// The shapes of a [`LatentAttention`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentShape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Heads.
    pub heads: usize,
    /// Width of the latent vector.
    pub rank: usize,
    /// Channels of a head's key that come from the latent vector.
    pub nope: usize,
    /// Channels of the key part that all heads share, to which most models apply rotary embedding.
    pub shared: usize,
    /// Channels of a head's value.
    pub value: usize,
}

impl LatentShape {
    /// Reads the keys of DeepSeek's configs.
    pub(crate) fn of(config: &Config) -> Result<Self, ConfigError> {
        const HEADS: &str = "num_attention_heads";
        Ok(Self {
            hidden: config.count("hidden_size")?,
            // Each head has separate rows.
            heads: match config.count(HEADS)? {
                heads @ 1..=4096 => heads,
                _ => return Err(config.wrong(HEADS, "at most 4096 heads")),
            },
            rank: config.count("kv_lora_rank")?,
            nope: config.count("qk_nope_head_dim")?,
            shared: config.count("qk_rope_head_dim")?,
            value: config.count("v_head_dim")?,
        })
    }

    /// The usual scale of q k^T.
    pub(crate) fn scale(&self) -> f64 {
        ((self.nope + self.shared) as f64).powf(-0.5)
    }

    /// Cached width per token.
    pub fn cached(&self) -> usize {
        self.rank + self.shared
    }
}

impl LatentAttention {
    /// Declares the parameters under `prefix`; `q_rank` is the width of the queries' latent vector, if they have one.
    /// The flag with the rotation says whether it turns adjacent channels together.
    pub(crate) fn declare(
        params: &mut Params,
        prefix: &str,
        (shape, q_rank): (LatentShape, Option<usize>),
        rope: Option<(Rope, bool)>,
    ) -> Self {
        let LatentShape { hidden, heads, rank, nope, shared, value } = shape;
        let pairs = |head_dim, first| {
            let (rope, pairs) = rope.as_ref()?;
            pairs.then_some(HeadPairs { head_dim, first, width: rope.width })
        };
        let layout = |pairs| MatrixLayout { pairs, ..MatrixLayout::default() };
        let of_queries = layout(pairs(nope + shared, nope));
        let of_keys = layout(pairs(rank + shared, rank));
        let name = |name: &str| format!("{prefix}.{name}.weight");
        let wide = heads * (nope + shared);
        let (queries, query_up) = match q_rank {
            None => (params.projection(name("q_proj"), wide, hidden), None),
            Some(rank) => {
                let queries = params.projection(name("q_a_proj"), rank, hidden);
                let norm = params.norm(name("q_a_layernorm"), rank);
                (queries, Some((norm, params.projection(name("q_b_proj"), wide, rank))))
            }
        };
        let all_queries = query_up.as_ref().map_or(&queries, |(_, up)| up);
        params.set_layout(all_queries.rows[0].param, of_queries);
        let latent = params.projection(name("kv_a_proj_with_mqa"), rank + shared, hidden);
        params.set_layout(latent.rows[0].param, of_keys);
        let project = Projection::stacked([queries, latent]);
        let latent_norm = params.norm(name("kv_a_layernorm"), rank);
        let up = params.projection(name("kv_b_proj"), heads * (nope + value), rank).rows[0];
        let of_heads = |skipped: usize, count: usize| {
            let rows =
                |head: usize| RowRange { first: head * (nope + value) + skipped, count, ..up };
            (0..heads).map(rows).collect()
        };
        Self {
            shape,
            project,
            query_up,
            rope: rope.map(|(rope, _)| rope),
            scale: shape.scale(),
            latent_norm,
            // transformers 5 and Moonshot's remote code; vLLM and mlx-lm use rms_norm_eps.
            latent_eps: 1e-6,
            key_up: of_heads(0, nope),
            value_up: of_heads(nope, value),
            out: params.projection(name("o_proj"), hidden, heads * value),
        }
    }
}
