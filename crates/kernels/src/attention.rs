//! Softmax attention: dense, packed and paged, grouped heads, any head dimension. See `attention/README.md`.

mod call;
mod cuda;
mod flash;
mod keys;
mod mask;
mod problem;
mod reference;
mod variants;

pub use call::{AttentionCall, AttentionOptions, Keys, Values};
pub use cuda::{MeasuredVariant, tuned};
pub use keys::KeyLayout;
pub use mask::Mask;
pub use problem::AttentionProblem;

use crate::cuda::CudaVariant;
use crate::{ChoiceTable, Family, Inputs, OpError, OpSpec, Preference, TensorMap, Variant};
use device::Capabilities;
use device::cuda::KernelSource;

/// The attention op.
#[derive(Debug, Clone, Copy)]
pub struct AttentionOp;

impl Family for AttentionOp {
    type Problem = AttentionProblem;
    type Options = AttentionOptions;
    const SPEC: &'static OpSpec = &problem::SPEC;
    const VARIANTS: &'static &'static [Variant<AttentionProblem>] = &variants::VARIANTS;
    const CUDA: &'static &'static [CudaVariant<AttentionProblem>] = &cuda::VARIANTS;

    fn preferred(problem: &AttentionProblem, here: &Capabilities) -> Vec<Preference> {
        here.cuda.as_ref().map(|here| cuda::preferred(problem, here)).unwrap_or_default()
    }

    fn choice_tables() -> Vec<ChoiceTable> {
        cuda::choice_tables()
    }

    fn bundled() -> Vec<KernelSource> {
        cuda::bundled()
    }

    fn parse(inputs: Inputs<'_>, options: &AttentionOptions) -> Result<AttentionProblem, OpError> {
        problem::parse(inputs, options)
    }

    fn reference(problem: &AttentionProblem, inputs: Inputs<'_>) -> TensorMap {
        reference::attention(problem, inputs)
    }
}
