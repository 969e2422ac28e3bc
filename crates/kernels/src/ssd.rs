//! Mamba-2's state space scan (SSD): a decaying outer-product state per head. See the folder's README.

mod call;
mod chunk;
mod cuda;
mod decay;
mod operands;
mod problem;
mod recurrent;
mod reference;
mod variants;

pub use call::{SsdCall, SsdOptions};
pub use problem::SsdProblem;

use crate::cuda::CudaVariant;
use crate::persistent::PhaseOf;
use crate::{ChoiceTable, Family, Inputs, OpError, OpSpec, Preference, TensorMap, Variant};
use device::Capabilities;
use device::cuda::KernelSource;

/// The op `ssd`.
#[derive(Debug, Clone, Copy)]
pub struct SsdOp;

impl Family for SsdOp {
    type Problem = SsdProblem;
    type Options = SsdOptions;
    const SPEC: &'static OpSpec = &problem::SPEC;
    const VARIANTS: &'static &'static [Variant<SsdProblem>] = &variants::VARIANTS;
    const CUDA: &'static &'static [CudaVariant<SsdProblem>] = &cuda::VARIANTS;
    const PHASE: Option<PhaseOf<SsdProblem>> = Some(cuda::PHASE);

    fn preferred(problem: &SsdProblem, here: &Capabilities) -> Vec<Preference> {
        here.cuda.as_ref().map(|here| cuda::preferred(problem, here)).unwrap_or_default()
    }

    fn choice_tables() -> Vec<ChoiceTable> {
        cuda::choice_tables()
    }

    fn bundled() -> Vec<KernelSource> {
        cuda::bundled()
    }

    fn parse(inputs: Inputs<'_>, options: &SsdOptions) -> Result<SsdProblem, OpError> {
        SsdProblem::parse(inputs, options)
    }

    fn reference(problem: &SsdProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::reference(problem, inputs)
    }
}
