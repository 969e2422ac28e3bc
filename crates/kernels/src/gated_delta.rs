//! The gated delta rule: one decay a head where `kda` has one a key channel. See the folder's README.

mod call;
mod problem;
mod reference;

pub use call::{GatedDeltaCall, GatedDeltaOptions};

use crate::kda::{KdaProblem, variants::variants};
use crate::{Family, Inputs, OpError, OpSpec, TensorMap, Variant};

/// The op `gated_delta`.
#[derive(Debug, Clone, Copy)]
pub struct GatedDeltaOp;

impl Family for GatedDeltaOp {
    type Problem = KdaProblem;
    type Options = GatedDeltaOptions;
    const SPEC: &'static OpSpec = &problem::SPEC;
    const VARIANTS: &'static [Variant<KdaProblem>] = variants!("gated_delta");

    fn parse(inputs: Inputs<'_>, options: &GatedDeltaOptions) -> Result<KdaProblem, OpError> {
        problem::parse(inputs, options)
    }

    fn reference(problem: &KdaProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::reference(problem, inputs)
    }
}
