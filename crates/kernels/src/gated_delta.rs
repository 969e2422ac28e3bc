//! The gated delta rule: one decay a head where `kda` has one a key channel. See the folder's README.

mod call;
mod problem;
mod reference;

pub use call::{GatedDeltaCall, GatedDeltaOptions};

use crate::cuda::CudaVariant;
use crate::kda::{Decays, KdaProblem, chunk, cuda, recurrent, variants::variants};
use crate::{ChoiceTable, Family, Inputs, OpError, OpSpec, Preference, TensorMap, Variant};
use device::Capabilities;
use device::cuda::KernelSource;

/// kda's variants under this name.
static VARIANTS: &[Variant<KdaProblem>] = variants!("gated_delta");

/// The op `gated_delta`.
#[derive(Debug, Clone, Copy)]
pub struct GatedDeltaOp;

impl Family for GatedDeltaOp {
    type Problem = KdaProblem;
    type Options = GatedDeltaOptions;
    const SPEC: &'static OpSpec = &problem::SPEC;
    const VARIANTS: &'static &'static [Variant<KdaProblem>] = &VARIANTS;
    const CUDA: &'static &'static [CudaVariant<KdaProblem>] = &cuda::VARIANTS;

    fn preferred(problem: &KdaProblem, here: &Capabilities) -> Vec<Preference> {
        here.cuda.as_ref().map(|_| cuda::preferred(problem)).unwrap_or_default()
    }

    fn choice_tables() -> Vec<ChoiceTable> {
        cuda::choice_tables()
    }

    fn bundled() -> Vec<KernelSource> {
        cuda::bundled(Decays::PerHead)
    }

    fn parse(inputs: Inputs<'_>, options: &GatedDeltaOptions) -> Result<KdaProblem, OpError> {
        problem::parse(inputs, options)
    }

    fn reference(problem: &KdaProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::reference(problem, inputs)
    }
}
