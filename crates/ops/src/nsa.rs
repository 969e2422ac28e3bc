//! Native Sparse Attention: the gated sum of attention to compressed tokens, selected blocks and a window. See the folder's
//! README.

mod account;
mod call;
mod check;
mod problem;
mod reference;
mod spec;

pub use call::{LearnedPoolingWeights, NsaCall, NsaOptions};
pub use check::{SCORE_MARGIN, check_selection};
pub use problem::{Branches, Gate, NsaProblem, Pooling};

use crate::{Family, Inputs, OpError, OpSpec, TensorMap};

/// The op `nsa`.
#[derive(Debug, Clone, Copy)]
pub struct NsaOp;

impl Family for NsaOp {
    type Problem = NsaProblem;
    type Options = NsaOptions;
    const SPEC: &'static OpSpec = &spec::SPEC;

    fn parse(inputs: Inputs<'_>, options: &NsaOptions) -> Result<NsaProblem, OpError> {
        NsaProblem::parse(inputs, options)
    }

    fn reference(problem: &NsaProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::reference(problem, inputs)
    }

    fn reference_given(
        problem: &NsaProblem,
        inputs: Inputs<'_>,
        outputs: &TensorMap,
    ) -> Result<TensorMap, String> {
        reference::reference_given(problem, inputs, outputs)
    }
}
