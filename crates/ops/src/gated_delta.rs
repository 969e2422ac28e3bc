//! The gated delta rule: one decay per head, where `kda` has one per key channel. See the folder's README.

mod call;
mod problem;
mod reference;

pub use call::{GatedDeltaCall, GatedDeltaOptions};

use crate::kda::KdaProblem;
use crate::{Differentiable, Family, Inputs, OpError, OpSpec, TensorMap};

/// The op `gated_delta`.
#[derive(Debug, Clone, Copy)]
pub struct GatedDeltaOp;

impl Family for GatedDeltaOp {
    type Problem = KdaProblem;
    type Options = GatedDeltaOptions;
    const SPEC: &'static OpSpec = &problem::SPEC;

    fn parse(inputs: Inputs<'_>, options: &GatedDeltaOptions) -> Result<KdaProblem, OpError> {
        problem::parse(inputs, options)
    }

    fn reference(problem: &KdaProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::reference(problem, inputs)
    }
}

impl Differentiable for GatedDeltaOp {
    const GRADIENT: &'static OpSpec = &problem::GRADIENT;
    const FLOPS: f64 = 3.0;

    fn gradient(problem: &KdaProblem, inputs: Inputs<'_>) -> TensorMap {
        crate::kda::gradient::gradient(problem, inputs)
    }
}
