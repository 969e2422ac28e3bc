//! The meaning of the dimensions of each op's dense tensors, for cutting a part out of a call.

use crate::CASES;
use ops::Tensor;
use std::ops::Range;

/// The meaning of a dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Axis {
    /// Channels, blocks: never split.
    Whole,
    /// Sequences.
    Batch,
    /// Tokens of a recurrence: a token's output depends on earlier ones.
    Tokens,
    /// Independent tokens: queries, rows of a norm or of a projection.
    QueryTokens,
    /// Heads of the first kind (queries or values; heads of an SSD; channels of a convolution; groups of a norm).
    Head,
    /// Heads of the second kind, shared by those of the first.
    Shared,
}

/// One op's axes: tensor names (inputs and outputs) with their dense shapes.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The tensor and dimension that give the number of heads of the first kind.
    pub(crate) heads: (&'static str, usize),
    /// The tensor and dimension that give the number of heads of the second kind.
    pub(crate) shared: (&'static str, usize),
    /// Whether a part has all heads that share one of the second kind, because they select together (nsa). Otherwise it has one of
    /// them.
    pub(crate) whole_groups: bool,
    /// Names, each with its dense shapes.
    pub(crate) tensors: &'static [(&'static str, &'static [Axis])],
}

/// The layout of an op's dense tensors.
pub(crate) fn layout(op: &str) -> Result<&'static Layout, String> {
    CASES
        .iter()
        .find(|of| of.op == op)
        .map(|of| &of.layout)
        .ok_or_else(|| format!("op `{op}` has no layout, so no part of a call can be checked"))
}

impl Layout {
    /// The layout of a gradient, whose calls have no independent parts: the gradient of a weight is a sum over all tokens.
    pub(crate) const WHOLE: Self =
        Self { heads: ("", 0), shared: ("", 0), whole_groups: false, tensors: &[] };

    /// Whether calls have no independent parts.
    pub(crate) fn is_whole(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The axes of a tensor.
    pub(crate) fn axes(&self, name: &str, tensor: &Tensor) -> Result<&'static [Axis], String> {
        let shape = tensor.shape();
        let found =
            self.tensors.iter().find(|(known, axes)| *known == name && axes.len() == shape.len());
        match found {
            Some((_, axes)) => Ok(axes),
            None => Err(format!("tensor `{name}` {shape:?} has a layout that cannot be split")),
        }
    }

    /// The part of a tensor that `keep` returns for each axis and its size.
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

/// The part of a tensor with one range per dimension.
fn slice(tensor: &Tensor, ranges: &[Range<usize>]) -> Tensor {
    if ranges.iter().zip(tensor.shape()).all(|(range, size)| *range == (0..*size)) {
        return tensor.clone();
    }
    tensor.part(ranges)
}
