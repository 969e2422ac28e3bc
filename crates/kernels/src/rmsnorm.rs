//! RMSNorm over groups of channels, plain or gated before or after. See the folder's README.

mod call;
pub(crate) mod cuda;
mod problem;
mod reference;
mod rows;
mod variants;

pub use call::{RmsNormCall, RmsNormOptions};
pub use problem::{Activation, RmsNormProblem};

use crate::cuda::CudaVariant;
use crate::persistent::PhaseOf;
use crate::{Family, Inputs, OpError, OpSpec, TensorMap, Variant};
use device::cuda::KernelSource;

/// The op `rmsnorm`.
#[derive(Debug, Clone, Copy)]
pub struct RmsNormOp;

impl Family for RmsNormOp {
    type Problem = RmsNormProblem;
    type Options = RmsNormOptions;
    const SPEC: &'static OpSpec = &problem::SPEC;
    const VARIANTS: &'static &'static [Variant<RmsNormProblem>] = &variants::VARIANTS;
    const CUDA: &'static &'static [CudaVariant<RmsNormProblem>] = &cuda::VARIANTS;
    const PHASE: Option<PhaseOf<RmsNormProblem>> = Some(cuda::PHASE);

    fn bundled() -> Vec<KernelSource> {
        cuda::bundled()
    }

    fn parse(inputs: Inputs<'_>, options: &RmsNormOptions) -> Result<RmsNormProblem, OpError> {
        RmsNormProblem::parse(inputs, options)
    }

    fn reference(problem: &RmsNormProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::reference(problem, inputs)
    }
}
