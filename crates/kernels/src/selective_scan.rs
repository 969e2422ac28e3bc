//! Mamba's selective scan: a decaying state per channel whose rates differ by state. See the folder's README.

mod call;
mod channels;
mod cuda;
mod operands;
mod problem;
mod reference;
mod states;
mod variants;

pub use call::{SelectiveScanCall, SelectiveScanOptions};
pub use problem::SelectiveScanProblem;

use crate::cuda::CudaVariant;
use crate::{ChoiceTable, Family, Inputs, OpError, OpSpec, Preference, TensorMap, Variant};
use device::Capabilities;
use device::cuda::KernelSource;

/// The op `selective_scan`.
#[derive(Debug, Clone, Copy)]
pub struct SelectiveScanOp;

impl Family for SelectiveScanOp {
    type Problem = SelectiveScanProblem;
    type Options = SelectiveScanOptions;
    const SPEC: &'static OpSpec = &problem::SPEC;
    const VARIANTS: &'static &'static [Variant<SelectiveScanProblem>] = &variants::VARIANTS;
    const CUDA: &'static &'static [CudaVariant<SelectiveScanProblem>] = &cuda::VARIANTS;

    fn preferred(problem: &SelectiveScanProblem, here: &Capabilities) -> Vec<Preference> {
        here.cuda.as_ref().map(|_| cuda::preferred(problem)).unwrap_or_default()
    }

    fn choice_tables() -> Vec<ChoiceTable> {
        cuda::choice_tables()
    }

    fn bundled() -> Vec<KernelSource> {
        cuda::bundled()
    }

    fn parse(
        inputs: Inputs<'_>,
        options: &SelectiveScanOptions,
    ) -> Result<SelectiveScanProblem, OpError> {
        SelectiveScanProblem::parse(inputs, options)
    }

    fn reference(problem: &SelectiveScanProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::reference(problem, inputs)
    }
}
