use crate::params::{ParamId, Params, Projection, Rows};

/// Multi-head latent attention: keys and values of all heads come from one latent vector a token, which is what the
/// cache holds, beside a key part that the heads share.
#[derive(Debug, Clone)]
pub struct LatentAttention {
    /// The shapes.
    pub shape: LatentShape,
    /// Queries of all heads, then latent vector and shared key part: all that reads the layer's input.
    pub project: Projection,
    /// `[rank]`, the norm of the latent vector.
    pub latent_norm: ParamId,
    /// Its epsilon, which is not the model's.
    pub latent_eps: f64,
    /// For each head its keys' rows `[nope, rank]`.
    pub key_up: Vec<Rows>,
    /// For each head its values' rows `[value, rank]`.
    pub value_up: Vec<Rows>,
    /// Back to the residual stream.
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
    /// Channels of the key part that the heads share. It would be rotated by position elsewhere; here it is not.
    pub shared: usize,
    /// Channels of a head's value.
    pub value: usize,
}

impl LatentShape {
    /// Factor of q k^T.
    pub fn scale(&self) -> f64 {
        ((self.nope + self.shared) as f64).powf(-0.5)
    }

    /// Width of a token in the cache.
    pub fn cached(&self) -> usize {
        self.rank + self.shared
    }
}

impl LatentAttention {
    /// Declares the parameters under `prefix`.
    pub(crate) fn declare(params: &mut Params, prefix: &str, shape: LatentShape) -> Self {
        let LatentShape { hidden, heads, rank, nope, shared, value } = shape;
        let name = |name: &str| format!("{prefix}.{name}.weight");
        let project = Projection::stacked([
            params.projection(name("q_proj"), heads * (nope + shared), hidden),
            params.projection(name("kv_a_proj_with_mqa"), rank + shared, hidden),
        ]);
        let latent_norm = params.norm(name("kv_a_layernorm"), rank);
        let up = params.projection(name("kv_b_proj"), heads * (nope + value), rank).rows[0];
        let of_heads = |skipped: usize, count: usize| {
            let rows = |head: usize| Rows { first: head * (nope + value) + skipped, count, ..up };
            (0..heads).map(rows).collect()
        };
        Self {
            shape,
            project,
            latent_norm,
            // transformers 5 and Moonshot's remote code; vLLM and mlx-lm take rms_norm_eps.
            latent_eps: 1e-6,
            key_up: of_heads(0, nope),
            value_up: of_heads(nope, value),
            out: params.projection(name("o_proj"), hidden, heads * value),
        }
    }
}
