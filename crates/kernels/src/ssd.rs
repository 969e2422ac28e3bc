//! Mamba-2's state space scan (SSD): a decaying outer-product state per head. See the folder's README.

mod chunk;
mod decay;
mod operands;
mod problem;
mod recurrent;
mod reference;
mod transpose;
mod variants;

pub use problem::SsdProblem;

use crate::{Family, Inputs, OpError, OpSpec, Settings, TensorMap, Variant};

/// The op `ssd`.
#[derive(Debug, Clone, Copy)]
pub struct SsdOp;

impl Family for SsdOp {
    type Problem = SsdProblem;
    const SPEC: &'static OpSpec = &problem::SPEC;
    const VARIANTS: &'static [Variant<SsdProblem>] = variants::VARIANTS;

    fn parse(inputs: Inputs<'_>, settings: &Settings) -> Result<SsdProblem, OpError> {
        SsdProblem::parse(inputs, settings)
    }

    fn reference(problem: &SsdProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::reference(problem, inputs)
    }
}
