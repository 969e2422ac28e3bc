//! Mixture of experts: a router's choice and the SwiGLU experts it weighs. See the folder's README.

mod check;
pub(crate) mod cuda;
mod experts;
mod problem;
mod reference;
mod route;
mod variants;

pub use check::SCORE_MARGIN;
pub use problem::{MoeProblem, Score};

use crate::cuda::CudaVariant;
use crate::{Family, Inputs, OpError, OpSpec, Settings, TensorMap, Variant};

/// The op `moe`.
#[derive(Debug, Clone, Copy)]
pub struct MoeOp;

impl Family for MoeOp {
    type Problem = MoeProblem;
    const SPEC: &'static OpSpec = &problem::SPEC;
    const VARIANTS: &'static [Variant<MoeProblem>] = variants::VARIANTS;
    const CUDA: &'static [CudaVariant<MoeProblem>] = cuda::VARIANTS;

    fn parse(inputs: Inputs<'_>, settings: &Settings) -> Result<MoeProblem, OpError> {
        MoeProblem::parse(inputs, settings)
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
