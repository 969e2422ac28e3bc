//! Kimi Delta Attention: a gated delta rule whose decay differs per key channel. See the folder's README.

mod call;
pub(crate) mod chunk;
pub(crate) mod cuda;
mod operands;
mod parts;
pub(crate) mod problem;
pub(crate) mod recurrent;
pub(crate) mod reference;
pub(crate) mod variants;

pub use call::{GateKind, KdaCall, KdaOptions};
pub use problem::{Beta, Decays, Gate, KdaProblem};

use crate::cuda::CudaVariant;
use crate::{ChoiceTable, Family, Inputs, OpError, OpSpec, Preference, TensorMap, Variant};
use device::Capabilities;
use device::cuda::KernelSource;

/// The op `kda`.
#[derive(Debug, Clone, Copy)]
pub struct KdaOp;

impl Family for KdaOp {
    type Problem = KdaProblem;
    type Options = KdaOptions;
    const SPEC: &'static OpSpec = &problem::SPEC;
    const VARIANTS: &'static &'static [Variant<KdaProblem>] = &variants::VARIANTS;
    const CUDA: &'static &'static [CudaVariant<KdaProblem>] = &cuda::VARIANTS;

    fn preferred(problem: &KdaProblem, here: &Capabilities) -> Vec<Preference> {
        here.cuda.as_ref().map(|_| cuda::preferred(problem)).unwrap_or_default()
    }

    fn choice_tables() -> Vec<ChoiceTable> {
        cuda::choice_tables()
    }

    fn bundled() -> Vec<KernelSource> {
        cuda::bundled(Decays::PerChannel)
    }

    fn parse(inputs: Inputs<'_>, options: &KdaOptions) -> Result<KdaProblem, OpError> {
        problem::parse(inputs, options, Decays::PerChannel)
    }

    fn reference(problem: &KdaProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::reference(problem, inputs)
    }
}
