use crate::params::{Params, Projection};

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
    /// Base of the rotation by position; none where position is not embedded.
    pub rope_theta: Option<f64>,
    /// Queries, keys and values, stacked.
    pub qkv: Projection,
    /// Output.
    pub out: Projection,
}

/// The shapes of an [`Attention`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttentionShape {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) scale: f64,
    pub(crate) rope_theta: Option<f64>,
}

impl Attention {
    /// Declares the parameters under `prefix`.
    pub(crate) fn declare(params: &mut Params, prefix: &str, shape: AttentionShape) -> Self {
        let AttentionShape { hidden, heads, kv_heads, head_dim, scale, rope_theta } = shape;
        let mut project = |name: &str, outputs, inputs| {
            params.projection(format!("{prefix}.{name}_proj.weight"), outputs, inputs)
        };
        Self {
            heads,
            kv_heads,
            head_dim,
            scale,
            rope_theta,
            qkv: Projection::stacked([
                project("q", heads * head_dim, hidden),
                project("k", kv_heads * head_dim, hidden),
                project("v", kv_heads * head_dim, hidden),
            ]),
            out: project("o", hidden, heads * head_dim),
        }
    }
}
