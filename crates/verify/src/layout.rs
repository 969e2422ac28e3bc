//! What the dimensions of an op's dense tensors run over, as far as cutting a call into parts needs it.

use kernels::Tensor;
use std::ops::Range;

/// What a dimension of a tensor runs over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Axis {
    /// Channels, blocks: never cut.
    Whole,
    /// Sequences.
    Batch,
    /// Tokens of a recurrence: what a token gives depends on those before it.
    Tokens,
    /// Tokens that do not mix: queries, rows of a norm or of a projection.
    QueryTokens,
    /// Heads of the first kind (queries or values; heads of an SSD; channels of a convolution; groups of a norm).
    Head,
    /// Heads of the second kind, shared by those of the first.
    Shared,
}

use Axis::{Batch, Head, QueryTokens, Shared, Tokens, Whole};

/// One op's axes: tensor names (inputs and outputs) with their dense shapes.
pub(crate) struct Layout {
    pub(crate) op: &'static str,
    /// Tensor whose shape gives the number of heads of the first kind, and the dimension.
    pub(crate) heads: (&'static str, usize),
    /// The same for the second kind.
    pub(crate) shared: (&'static str, usize),
    tensors: &'static [(&'static str, &'static [Axis])],
}

const LAYOUTS: &[Layout] = &[
    Layout {
        op: "attention",
        heads: ("q", 2),
        shared: ("k", 2),
        tensors: &[
            ("q", &[Batch, QueryTokens, Head, Whole]),
            ("k", &[Batch, Whole, Shared, Whole]),
            ("v", &[Batch, Whole, Shared, Whole]),
            ("cache_seqlens", &[Batch]),
            ("o", &[Batch, QueryTokens, Head, Whole]),
            ("lse", &[Batch, Head, QueryTokens]),
        ],
    },
    Layout {
        op: "kda",
        heads: ("v", 2),
        shared: ("q", 2),
        tensors: &[
            ("q", &[Batch, Tokens, Shared, Whole]),
            ("k", &[Batch, Tokens, Shared, Whole]),
            ("v", &[Batch, Tokens, Head, Whole]),
            ("g", &[Batch, Tokens, Head, Whole]),
            ("beta", &[Batch, Tokens, Head]),
            ("A_log", &[Head]),
            ("dt_bias", &[Head, Whole]),
            ("initial_state", &[Batch, Head, Whole, Whole]),
            ("o", &[Batch, Tokens, Head, Whole]),
            ("final_state", &[Batch, Head, Whole, Whole]),
        ],
    },
    Layout {
        op: "ssd",
        heads: ("x", 2),
        shared: ("B", 2),
        tensors: &[
            ("x", &[Batch, Tokens, Head, Whole]),
            ("dt", &[Batch, Tokens, Head]),
            ("A", &[Head]),
            ("B", &[Batch, Tokens, Shared, Whole]),
            ("C", &[Batch, Tokens, Shared, Whole]),
            ("D", &[Head]),
            ("D", &[Head, Whole]),
            ("z", &[Batch, Tokens, Head, Whole]),
            ("dt_bias", &[Head]),
            ("initial_state", &[Batch, Head, Whole, Whole]),
            ("o", &[Batch, Tokens, Head, Whole]),
            ("final_state", &[Batch, Head, Whole, Whole]),
        ],
    },
    Layout {
        op: "conv1d",
        heads: ("x", 2),
        shared: ("x", 2),
        tensors: &[
            ("x", &[Batch, Tokens, Head]),
            ("weight", &[Head, Whole]),
            ("bias", &[Head]),
            ("initial_state", &[Batch, Head, Whole]),
            ("o", &[Batch, Tokens, Head]),
            ("final_state", &[Batch, Head, Whole]),
        ],
    },
    Layout {
        op: "nsa",
        heads: ("q", 2),
        shared: ("k", 2),
        tensors: &[
            ("q", &[Batch, QueryTokens, Head, Whole]),
            ("k", &[Batch, Whole, Shared, Whole]),
            ("v", &[Batch, Whole, Shared, Whole]),
            ("g_cmp", &[Batch, QueryTokens, Head]),
            ("g_slc", &[Batch, QueryTokens, Head]),
            ("g_swa", &[Batch, QueryTokens, Head]),
            ("block_indices", &[Batch, QueryTokens, Shared, Whole]),
            ("k_cmp", &[Batch, Whole, Shared, Whole]),
            ("v_cmp", &[Batch, Whole, Shared, Whole]),
            ("cmp_k_weight", &[Shared, Whole, Whole]),
            ("cmp_v_weight", &[Shared, Whole, Whole]),
            ("cmp_k_pos", &[Shared, Whole, Whole]),
            ("cmp_v_pos", &[Shared, Whole, Whole]),
            ("o", &[Batch, QueryTokens, Head, Whole]),
            ("indices", &[Batch, QueryTokens, Shared, Whole]),
            ("reads", &[Batch, QueryTokens, Shared, Whole]),
        ],
    },
    Layout {
        op: "rmsnorm",
        heads: ("x", 2),
        shared: ("x", 2),
        tensors: &[
            ("x", &[Batch, QueryTokens, Head, Whole]),
            ("gate", &[Batch, QueryTokens, Head, Whole]),
            ("weight", &[Whole]),
            ("weight", &[Head, Whole]),
            ("o", &[Batch, QueryTokens, Head, Whole]),
        ],
    },
    // Only rows of x are cut: the widths of the outputs are settings, and swiglu pairs columns that lie far apart.
    Layout {
        op: "linear",
        heads: ("x", 0),
        shared: ("x", 0),
        tensors: &[
            ("x", &[QueryTokens, Whole]),
            ("w", &[Whole, Whole]),
            ("norm", &[Whole]),
            ("bias", &[Whole]),
            ("residual", &[QueryTokens, Whole]),
            ("o", &[QueryTokens, Whole]),
            ("o1", &[QueryTokens, Whole]),
            ("o2", &[QueryTokens, Whole]),
            ("o3", &[QueryTokens, Whole]),
            ("o4", &[QueryTokens, Whole]),
            ("o5", &[QueryTokens, Whole]),
        ],
    },
    // No heads: only tokens are left out.
    Layout {
        op: "moe",
        heads: ("x", 0),
        shared: ("x", 0),
        tensors: &[
            ("x", &[QueryTokens, Whole]),
            ("logits", &[QueryTokens, Whole]),
            ("correction", &[Whole]),
            ("w_gate_up", &[Whole, Whole, Whole]),
            ("w_down", &[Whole, Whole, Whole]),
            ("residual", &[QueryTokens, Whole]),
            ("o", &[QueryTokens, Whole]),
            ("chosen", &[QueryTokens, Whole]),
            ("weights", &[QueryTokens, Whole]),
        ],
    },
    // Only rows are left out.
    Layout {
        op: "sampling",
        heads: ("logits", 0),
        shared: ("logits", 0),
        tensors: &[
            ("logits", &[QueryTokens, Whole]),
            ("controls", &[QueryTokens, Whole]),
            ("top_k", &[QueryTokens]),
            ("seed", &[QueryTokens, Whole]),
            ("draw", &[QueryTokens]),
            ("mask", &[QueryTokens, Whole]),
            ("token", &[QueryTokens]),
            ("logprob", &[QueryTokens]),
            ("top_tokens", &[QueryTokens, Whole]),
            ("top_logprobs", &[QueryTokens, Whole]),
        ],
    },
];

/// The layout of an op's dense tensors.
pub(crate) fn layout(op: &str) -> Result<&'static Layout, String> {
    LAYOUTS
        .iter()
        .find(|layout| layout.op == op)
        .ok_or_else(|| format!("op `{op}` has no layout to cut it by"))
}

impl Layout {
    /// What each dimension of a tensor runs over.
    pub(crate) fn axes(&self, name: &str, tensor: &Tensor) -> Result<&'static [Axis], String> {
        let shape = tensor.shape();
        let found =
            self.tensors.iter().find(|(known, axes)| *known == name && axes.len() == shape.len());
        match found {
            Some((_, axes)) => Ok(axes),
            None => Err(format!("tensor `{name}` {shape:?} is of a form that is not cut")),
        }
    }

    /// The part of a tensor that `keep` gives for each axis and its size.
    pub(crate) fn cut(
        &self,
        name: &str,
        tensor: &Tensor,
        keep: impl Fn(Axis, usize) -> Range<usize>,
    ) -> Result<Tensor, String> {
        let axes = self.axes(name, tensor)?;
        let ranges: Vec<_> =
            axes.iter().zip(tensor.shape()).map(|(axis, size)| keep(*axis, *size)).collect();
        Ok(slice(tensor, &ranges))
    }
}

/// The part of a tensor inside one range a dimension.
fn slice(tensor: &Tensor, ranges: &[Range<usize>]) -> Tensor {
    if ranges.iter().zip(tensor.shape()).all(|(range, size)| *range == (0..*size)) {
        return tensor.clone();
    }
    tensor.part(ranges)
}
