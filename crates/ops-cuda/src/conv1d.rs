//! The causal convolution on NVIDIA GPUs: one file a variant beside its kernel. All run from compute capability 8.0 on.

mod channel_first;
mod channel_last;
mod operands;
mod update;

use crate::{CudaTable, CudaVariant};
use device::cuda::{BundledArch, KernelSource};
use ops::conv1d::Conv1dProblem;

/// The variants, best first; each refuses what it is not for.
static VARIANTS: &[CudaVariant<Conv1dProblem>] =
    &[update::VARIANT, channel_last::VARIANT, channel_first::VARIANT];

/// What GPUs have of conv1d.
pub(crate) static CUDA: CudaTable<Conv1dProblem> = CudaTable::new(VARIANTS, bundled);

/// What the bundle holds of conv1d.
fn bundled() -> Vec<KernelSource> {
    let mut sources = Vec::new();
    for arch in BundledArch::ALL {
        sources.extend(update::bundled(arch));
        sources.extend(channel_last::bundled(arch));
        sources.extend(channel_first::bundled(arch));
    }
    sources
}
