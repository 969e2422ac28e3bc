//! The state space scan on NVIDIA GPUs: one file a variant beside its kernels, and the table that chooses among them.

mod choice;
mod chunk;
mod operands;
mod persistent;
mod recurrent;
mod segments;

pub(super) use choice::{choice_tables, preferred};
pub(super) use persistent::PHASE;

use super::SsdProblem;
use crate::cuda::CudaVariant;
use device::cuda::{BundledArch, KernelSource};

/// The variants. [`choice`] says which is taken for what; this order decides only where it is silent. The last one is there to verify
/// phases.
pub(super) static VARIANTS: &[CudaVariant<SsdProblem>] =
    &[chunk::VARIANT, recurrent::VARIANT, persistent::VARIANT];

/// What the bundle holds of ssd.
pub(super) fn bundled() -> Vec<KernelSource> {
    let mut sources = Vec::new();
    for arch in BundledArch::ALL {
        sources.extend(chunk::bundled(arch));
        sources.extend(recurrent::bundled(arch));
    }
    sources
}
