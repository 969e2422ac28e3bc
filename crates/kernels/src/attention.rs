//! Softmax attention: dense, packed and paged, grouped heads, any head dimension. See `attention/README.md`.

mod flash;
mod keys;
mod mask;
mod problem;
mod reference;
mod variants;

pub use keys::KeyLayout;
pub use mask::Mask;
pub use problem::AttentionProblem;

use crate::{Family, Inputs, OpError, OpSpec, Settings, TensorMap, Variant};

/// The attention op.
#[derive(Debug, Clone, Copy)]
pub struct AttentionOp;

impl Family for AttentionOp {
    type Problem = AttentionProblem;
    const SPEC: &'static OpSpec = &problem::SPEC;
    const VARIANTS: &'static [Variant<AttentionProblem>] = variants::VARIANTS;

    fn parse(inputs: Inputs<'_>, settings: &Settings) -> Result<AttentionProblem, OpError> {
        problem::parse(inputs, settings)
    }

    fn reference(problem: &AttentionProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::attention(problem, inputs)
    }
}
