//! Mixture of experts: a router's choice and the SwiGLU experts it weighs. See the folder's README.

mod call;
mod check;
mod cuda;
mod experts;
mod problem;
mod reference;
mod route;
mod variants;

pub use call::{MoeCall, MoeOptions, SUM_EPS};
pub use check::SCORE_MARGIN;
pub use problem::{Clamp, MoeProblem, NarrowExperts, Score};

use crate::cuda::CudaVariant;
use crate::persistent::PhaseOf;
use crate::{ChoiceTable, DType, Family, Inputs, OpError, OpSpec, Preference, TensorMap, Variant};
use device::Capabilities;
use device::cuda::KernelSource;

/// Whether weights in e4m3, i8 or u4 `[rows, columns]`, with a factor for each `group` columns of a row or for whole rows, are read as they
/// are on GPUs by a few tokens; otherwise they would be made bf16 for each call.
pub fn reads_once(dtype: DType, columns: usize, group: Option<usize>) -> bool {
    cuda::reads_once(dtype, columns, group)
}

/// Whether the kernels of GPUs take so many experts, those that every token takes among them, and so many of a token.
pub fn takes(experts: usize, of_token: usize) -> bool {
    cuda::takes(experts, of_token)
}

/// The op `moe`.
#[derive(Debug, Clone, Copy)]
pub struct MoeOp;

impl Family for MoeOp {
    type Problem = MoeProblem;
    type Options = MoeOptions;
    const SPEC: &'static OpSpec = &problem::SPEC;
    const VARIANTS: &'static &'static [Variant<MoeProblem>] = &variants::VARIANTS;
    const CUDA: &'static &'static [CudaVariant<MoeProblem>] = &cuda::VARIANTS;
    const PHASE: Option<PhaseOf<MoeProblem>> = Some(cuda::PHASE);

    fn preferred(problem: &MoeProblem, here: &Capabilities) -> Vec<Preference> {
        here.cuda.as_ref().map(|_| cuda::preferred(problem)).unwrap_or_default()
    }

    fn choice_tables() -> Vec<ChoiceTable> {
        cuda::choice_tables()
    }

    fn bundled() -> Vec<KernelSource> {
        cuda::bundled()
    }

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
