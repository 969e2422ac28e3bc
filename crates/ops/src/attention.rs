//! Softmax attention: dense, packed and paged, grouped heads, any head dimension. See `attention/README.md`.

mod call;
mod gradient;
mod keys;
mod mask;
mod problem;
mod reference;

pub use call::{AttentionCall, AttentionOptions, Keys, Values};
pub use keys::KeyLayout;
pub use mask::Mask;
pub use problem::AttentionProblem;

use crate::{Differentiable, Family, Inputs, OpError, OpSpec, TensorMap};

/// The attention op.
#[derive(Debug, Clone, Copy)]
pub struct AttentionOp;

impl Family for AttentionOp {
    type Problem = AttentionProblem;
    type Options = AttentionOptions;
    const SPEC: &'static OpSpec = &problem::SPEC;

    fn parse(inputs: Inputs<'_>, options: &AttentionOptions) -> Result<AttentionProblem, OpError> {
        problem::parse(inputs, options)
    }

    fn reference(problem: &AttentionProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::attention(problem, inputs)
    }
}

impl Differentiable for AttentionOp {
    const GRADIENT: &'static OpSpec = &gradient::SPEC;
    const FLOPS: f64 = 2.5;

    fn gradient(problem: &AttentionProblem, inputs: Inputs<'_>) -> TensorMap {
        gradient::gradient(problem, inputs)
    }
}
