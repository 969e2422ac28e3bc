//! Mamba-2's state space scan (SSD): a decaying outer-product state per head. See the folder's README.

mod call;
mod gradient;
mod problem;
mod reference;

pub use call::{SsdCall, SsdOptions};
pub use problem::SsdProblem;

use crate::{Differentiable, Family, Inputs, OpError, OpSpec, TensorMap};

/// The op `ssd`.
#[derive(Debug, Clone, Copy)]
pub struct SsdOp;

impl Family for SsdOp {
    type Problem = SsdProblem;
    type Options = SsdOptions;
    const SPEC: &'static OpSpec = &problem::SPEC;

    fn parse(inputs: Inputs<'_>, options: &SsdOptions) -> Result<SsdProblem, OpError> {
        SsdProblem::parse(inputs, options)
    }

    fn reference(problem: &SsdProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::reference(problem, inputs)
    }
}

impl Differentiable for SsdOp {
    const GRADIENT: &'static OpSpec = &gradient::SPEC;
    const FLOPS: f64 = 3.0;

    fn gradient(problem: &SsdProblem, inputs: Inputs<'_>) -> TensorMap {
        gradient::gradient(problem, inputs)
    }
}
