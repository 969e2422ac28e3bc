//! Kimi Delta Attention: a gated delta rule whose decay differs per key channel. See the folder's README.

mod call;
pub(crate) mod gradient;
pub(crate) mod problem;
pub(crate) mod reference;

pub use call::{GateKind, KdaCall, KdaOptions};
pub use problem::{Beta, Decays, Gate, KdaProblem};

use crate::{Differentiable, Family, Inputs, OpError, OpSpec, TensorMap};

/// The op `kda`.
#[derive(Debug, Clone, Copy)]
pub struct KdaOp;

impl Family for KdaOp {
    type Problem = KdaProblem;
    type Options = KdaOptions;
    const SPEC: &'static OpSpec = &problem::SPEC;

    fn parse(inputs: Inputs<'_>, options: &KdaOptions) -> Result<KdaProblem, OpError> {
        problem::parse(inputs, options, Decays::PerChannel)
    }

    fn reference(problem: &KdaProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::reference(problem, inputs)
    }
}

impl Differentiable for KdaOp {
    const GRADIENT: &'static OpSpec = &gradient::SPEC;
    const FLOPS: f64 = 3.0;

    fn gradient(problem: &KdaProblem, inputs: Inputs<'_>) -> TensorMap {
        gradient::gradient(problem, inputs)
    }
}
