//! Causal conv1d and its gradient on NVIDIA GPUs: one file per variant next to its kernel. All run from compute capability 8.0 on.

mod backward;
mod channel_first;
mod channel_last;
mod operands;
mod update;

use crate::{CudaTable, CudaVariant};
use device::cuda::{BundledArch, KernelSource};
use ops::GradientProblem;
use ops::conv1d::Conv1dProblem;

/// The variants in order of preference; each rejects the problems that it does not support.
static VARIANTS: &[CudaVariant<Conv1dProblem>] =
    &[update::VARIANT, channel_last::VARIANT, channel_first::VARIANT];

/// The conv1d variants of NVIDIA GPUs.
pub(crate) static CUDA: CudaTable<Conv1dProblem> = CudaTable::new(VARIANTS, bundled);

/// The variants of the gradient.
pub(crate) static BACKWARD: CudaTable<GradientProblem<Conv1dProblem>> =
    CudaTable::new(backward::VARIANTS, backward::bundled);

/// The conv1d kernels of the bundle.
fn bundled() -> Vec<KernelSource> {
    let mut sources = Vec::new();
    for arch in BundledArch::ALL {
        sources.extend(update::bundled(arch));
        sources.extend(channel_last::bundled(arch));
        sources.extend(channel_first::bundled(arch));
    }
    sources
}
