//! Native Sparse Attention: each query attends to compressed tokens, to a few selected blocks, and to a window; gates
//! weigh the three. The formulas and their traps are in `nsa/README.md`.

mod account;
mod blocked;
mod call;
mod check;
mod cuda;
mod problem;
mod reference;
mod spec;
mod variants;

pub use call::{Learned, NsaCall, NsaOptions};
pub use check::{SCORE_MARGIN, check_selection};
pub use problem::{Branches, Gate, NsaProblem, Pooling};

use crate::cuda::CudaVariant;
use crate::{ChoiceTable, Family, Inputs, OpError, OpSpec, Preference, TensorMap, Variant};
use device::Capabilities;
use device::cuda::KernelSource;

/// The op `nsa`.
#[derive(Debug, Clone, Copy)]
pub struct NsaOp;

impl Family for NsaOp {
    type Problem = NsaProblem;
    type Options = NsaOptions;
    const SPEC: &'static OpSpec = &spec::SPEC;
    const VARIANTS: &'static &'static [Variant<NsaProblem>] = &variants::VARIANTS;
    const CUDA: &'static &'static [CudaVariant<NsaProblem>] = &cuda::VARIANTS;

    fn preferred(problem: &NsaProblem, here: &Capabilities) -> Vec<Preference> {
        here.cuda.as_ref().map(|_| cuda::preferred(problem)).unwrap_or_default()
    }

    fn choice_tables() -> Vec<ChoiceTable> {
        cuda::choice_tables()
    }

    fn bundled() -> Vec<KernelSource> {
        cuda::bundled()
    }

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
