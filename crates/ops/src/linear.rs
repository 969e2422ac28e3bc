//! Linear projection with a fused prologue (RMSNorm) and epilogue (bias, activation, scale, residual, convolution step). See the
//! folder's README.

mod call;
mod convolution;
mod problem;
mod reference;

pub use call::{ConvStep, Epilogue, LinearCall, LinearOptions, NormPrologue, OutputType};
pub use convolution::Convolution;
pub use problem::{LinearProblem, Norm, SCALED, Scales};

use crate::{Family, Inputs, OpError, OpSpec, TensorMap};

/// The op `linear`.
#[derive(Debug, Clone, Copy)]
pub struct LinearOp;

impl Family for LinearOp {
    type Problem = LinearProblem;
    type Options = LinearOptions;
    const SPEC: &'static OpSpec = &problem::SPEC;

    fn parse(inputs: Inputs<'_>, options: &LinearOptions) -> Result<LinearProblem, OpError> {
        LinearProblem::parse(inputs, options)
    }

    fn reference(problem: &LinearProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::reference(problem, inputs)
    }
}
