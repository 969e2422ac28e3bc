//! Mamba's selective scan: a decaying state per channel, with one rate per state element. See the folder's README.

mod call;
mod problem;
mod reference;

pub use call::{SelectiveScanCall, SelectiveScanOptions};
pub use problem::SelectiveScanProblem;

use crate::{Family, Inputs, OpError, OpSpec, TensorMap};

/// The op `selective_scan`.
#[derive(Debug, Clone, Copy)]
pub struct SelectiveScanOp;

impl Family for SelectiveScanOp {
    type Problem = SelectiveScanProblem;
    type Options = SelectiveScanOptions;
    const SPEC: &'static OpSpec = &problem::SPEC;

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
