//! Kimi Delta Attention: a gated delta rule whose decay differs per key channel. See the folder's README.

mod chunk;
mod operands;
mod parts;
mod problem;
mod recurrent;
mod reference;
mod variants;

pub use problem::{Beta, Gate, KdaProblem};

use crate::{Family, Inputs, OpError, OpSpec, Settings, TensorMap, Variant};

/// The op `kda`.
#[derive(Debug, Clone, Copy)]
pub struct KdaOp;

impl Family for KdaOp {
    type Problem = KdaProblem;
    const SPEC: &'static OpSpec = &problem::SPEC;
    const VARIANTS: &'static [Variant<KdaProblem>] = variants::VARIANTS;

    fn parse(inputs: Inputs<'_>, settings: &Settings) -> Result<KdaProblem, OpError> {
        problem::parse(inputs, settings)
    }

    fn reference(problem: &KdaProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::reference(problem, inputs)
    }
}
