//! Projections with what stands around them: norm before; bias, activation, scale, residual and a convolution's step after.
//! See the folder's README.

mod call;
mod convolution;
mod cuda;
mod problem;
mod reference;
mod strips;
mod variants;

pub use call::{Convolved, Finish, LinearCall, LinearOptions, Normed, Out};
pub use convolution::Convolution;
pub use problem::{LinearProblem, Norm, SCALED, Scales};

use crate::cuda::CudaVariant;
use crate::persistent::PhaseOf;
use crate::{ChoiceTable, Family, Inputs, OpError, OpSpec, TensorMap, Variant};
use device::cuda::KernelSource;

/// The op `linear`.
#[derive(Debug, Clone, Copy)]
pub struct LinearOp;

impl Family for LinearOp {
    type Problem = LinearProblem;
    type Options = LinearOptions;
    const SPEC: &'static OpSpec = &problem::SPEC;
    const VARIANTS: &'static &'static [Variant<LinearProblem>] = &variants::VARIANTS;
    const CUDA: &'static &'static [CudaVariant<LinearProblem>] = &cuda::VARIANTS;
    const PHASE: Option<PhaseOf<LinearProblem>> = Some(cuda::PHASE);

    fn choice_tables() -> Vec<ChoiceTable> {
        cuda::choice_tables()
    }

    fn bundled() -> Vec<KernelSource> {
        cuda::bundled()
    }

    fn parse(inputs: Inputs<'_>, options: &LinearOptions) -> Result<LinearProblem, OpError> {
        LinearProblem::parse(inputs, options)
    }

    fn reference(problem: &LinearProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::reference(problem, inputs)
    }
}
