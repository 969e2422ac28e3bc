//! RMSNorm over groups of channels, plain or gated before or after. See the folder's README.

mod call;
mod gradient;
mod problem;
mod reference;

pub use call::{RmsNormCall, RmsNormOptions};
pub use problem::{Activation, RmsNormProblem};

use crate::{Differentiable, Family, Inputs, OpError, OpSpec, TensorMap};

/// The op `rmsnorm`.
#[derive(Debug, Clone, Copy)]
pub struct RmsNormOp;

impl Family for RmsNormOp {
    type Problem = RmsNormProblem;
    type Options = RmsNormOptions;
    const SPEC: &'static OpSpec = &problem::SPEC;

    fn parse(inputs: Inputs<'_>, options: &RmsNormOptions) -> Result<RmsNormProblem, OpError> {
        RmsNormProblem::parse(inputs, options)
    }

    fn reference(problem: &RmsNormProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::reference(problem, inputs)
    }
}

impl Differentiable for RmsNormOp {
    const GRADIENT: &'static OpSpec = &gradient::SPEC;
    const FLOPS: f64 = 3.0;

    fn gradient(problem: &RmsNormProblem, inputs: Inputs<'_>) -> TensorMap {
        gradient::gradient(problem, inputs)
    }
}
