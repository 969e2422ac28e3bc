//! Kimi Delta Attention: a gated delta rule whose decay differs per key channel. See the folder's README.

mod call;
mod chunk;
pub(crate) mod cuda;
mod operands;
mod parts;
mod problem;
mod recurrent;
mod reference;
mod variants;

pub use call::{GateKind, KdaCall, KdaOptions};
pub use problem::{Beta, Gate, KdaProblem};

use crate::cuda::CudaVariant;
use crate::{ChoiceTable, Family, Inputs, OpError, OpSpec, Preference, TensorMap, Variant};
use device::Capabilities;

/// The op `kda`.
#[derive(Debug, Clone, Copy)]
pub struct KdaOp;

impl Family for KdaOp {
    type Problem = KdaProblem;
    type Options = KdaOptions;
    const SPEC: &'static OpSpec = &problem::SPEC;
    const VARIANTS: &'static [Variant<KdaProblem>] = variants::VARIANTS;
    const CUDA: &'static [CudaVariant<KdaProblem>] = cuda::VARIANTS;

    fn preferred(problem: &KdaProblem, here: &Capabilities) -> Vec<Preference> {
        here.cuda.as_ref().map(|_| cuda::preferred(problem)).unwrap_or_default()
    }

    fn choice_tables() -> Vec<ChoiceTable> {
        cuda::choice_tables()
    }

    fn parse(inputs: Inputs<'_>, options: &KdaOptions) -> Result<KdaProblem, OpError> {
        problem::parse(inputs, options)
    }

    fn reference(problem: &KdaProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::reference(problem, inputs)
    }
}
