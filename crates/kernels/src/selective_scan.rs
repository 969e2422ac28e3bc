//! Mamba's selective scan: a decaying state per channel whose rates differ by state. See the folder's README.

mod call;
mod channels;
mod operands;
mod problem;
mod reference;
mod states;
mod variants;

pub use call::{SelectiveScanCall, SelectiveScanOptions};
pub use problem::SelectiveScanProblem;

use crate::{Family, Inputs, OpError, OpSpec, TensorMap, Variant};

/// The op `selective_scan`. It has no variants for GPUs yet.
#[derive(Debug, Clone, Copy)]
pub struct SelectiveScanOp;

impl Family for SelectiveScanOp {
    type Problem = SelectiveScanProblem;
    type Options = SelectiveScanOptions;
    const SPEC: &'static OpSpec = &problem::SPEC;
    const VARIANTS: &'static [Variant<SelectiveScanProblem>] = variants::VARIANTS;

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
