//! Depthwise causal convolution over tokens, width 2 to 4. See the folder's README.

mod call;
mod gradient;
mod problem;
mod reference;

pub use call::{Conv1dCall, Conv1dOptions};
pub use problem::{Activation, Conv1dProblem, Layout};

use crate::{Differentiable, Family, Inputs, OpError, OpSpec, TensorMap};

/// The op `conv1d`.
#[derive(Debug, Clone, Copy)]
pub struct Conv1dOp;

impl Family for Conv1dOp {
    type Problem = Conv1dProblem;
    type Options = Conv1dOptions;
    const SPEC: &'static OpSpec = &problem::SPEC;

    fn parse(inputs: Inputs<'_>, options: &Conv1dOptions) -> Result<Conv1dProblem, OpError> {
        Conv1dProblem::parse(inputs, options)
    }

    fn reference(problem: &Conv1dProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::reference(problem, inputs)
    }
}

impl Differentiable for Conv1dOp {
    const GRADIENT: &'static OpSpec = &gradient::SPEC;
    const FLOPS: f64 = 3.0;

    fn gradient(problem: &Conv1dProblem, inputs: Inputs<'_>) -> TensorMap {
        gradient::gradient(problem, inputs)
    }
}
