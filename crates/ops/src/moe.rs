//! Mixture of experts: top-k routing and the weighted sum of the experts. See the folder's README.

mod call;
mod check;
mod problem;
mod reference;
mod route;

pub use call::{MoeCall, MoeOptions, SUM_EPS};
pub use check::SCORE_MARGIN;
pub use problem::{Clamp, MoeProblem, QuantizedExperts, Score, scale_names};
pub use route::{Routes, route};

use crate::{Family, Inputs, OpError, OpSpec, TensorMap};

/// The op `moe`.
#[derive(Debug, Clone, Copy)]
pub struct MoeOp;

impl Family for MoeOp {
    type Problem = MoeProblem;
    type Options = MoeOptions;
    const SPEC: &'static OpSpec = &problem::SPEC;

    fn parse(inputs: Inputs<'_>, options: &MoeOptions) -> Result<MoeProblem, OpError> {
        MoeProblem::parse(inputs, options)
    }

    fn reference(problem: &MoeProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::reference(problem, inputs)
    }

    fn reference_given(
        problem: &MoeProblem,
        inputs: Inputs<'_>,
        outputs: &TensorMap,
    ) -> Result<TensorMap, String> {
        reference::reference_given(problem, inputs, outputs)
    }
}
