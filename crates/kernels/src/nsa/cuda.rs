//! NSA on NVIDIA GPUs. The steps that variants share (compression, compressed branch, selection) stand in [`stages`];
//! each variant adds how the selected and window branches are read. `cuda/README.md` has the design and the figures.

mod blocks;
mod choice;
mod gather;
mod operands;
mod stages;
mod step;
mod step_cluster;

pub(super) use choice::{choice_tables, preferred};

use super::NsaProblem;
use crate::DType;
use crate::cuda::CudaVariant;
use device::cuda::{BundledArch, KernelSource};

/// The variants. [`choice`] says which is taken for what; this order decides only where it is silent.
pub(super) const VARIANTS: &[CudaVariant<NsaProblem>] =
    &[step_cluster::VARIANT, blocks::VARIANT, step::VARIANT, gather::VARIANT];

/// What the bundle holds of nsa: the paper's heads and those of equal D and Dv that its followers use.
pub(crate) fn bundled() -> Vec<KernelSource> {
    let mut sources = Vec::new();
    for arch in BundledArch::ALL {
        for dims in [(128, 128), (192, 128)] {
            sources.extend(stages::bundled(DType::Bf16, dims, arch));
            sources.extend(gather::bundled(DType::Bf16, dims, arch));
            sources.extend(step::bundled(DType::Bf16, dims, arch));
            sources.extend(step_cluster::bundled(DType::Bf16, dims, arch));
        }
        sources.extend(blocks::bundled(DType::Bf16, (128, 128), arch));
    }
    sources
}
