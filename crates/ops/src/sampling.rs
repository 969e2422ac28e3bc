//! Sampling: the next token of each row of logits, with penalties, mask, top-k, top-p and min-p. See the folder's README.

mod call;
mod problem;
mod reference;

pub use call::{SamplingCall, SamplingOptions};
pub use problem::{CONTROLS, IN_PROMPT, MAX_TOP_LOGPROBS, NONE, SamplingProblem};

use crate::{Family, Inputs, OpError, OpSpec, TensorMap};

/// The op `sampling`.
#[derive(Debug, Clone, Copy)]
pub struct SamplingOp;

impl Family for SamplingOp {
    type Problem = SamplingProblem;
    type Options = SamplingOptions;
    const SPEC: &'static OpSpec = &problem::SPEC;

    fn parse(inputs: Inputs<'_>, options: &SamplingOptions) -> Result<SamplingProblem, OpError> {
        SamplingProblem::parse(inputs, options)
    }

    fn reference(problem: &SamplingProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::reference(problem, inputs)
    }

    fn reference_given(
        problem: &SamplingProblem,
        inputs: Inputs<'_>,
        outputs: &TensorMap,
    ) -> Result<TensorMap, String> {
        reference::reference_given(problem, inputs, outputs)
    }
}
