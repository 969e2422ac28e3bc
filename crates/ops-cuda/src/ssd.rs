//! The state space scan on NVIDIA GPUs: one file a variant beside its kernels, and the table that chooses among them.

mod choice;
mod chunk;
mod operands;
mod persistent;
mod recurrent;
mod segments;

use crate::{CudaTable, CudaVariant};
use choice::{choice_tables, preferred};
use device::cuda::{BundledArch, KernelSource};
use ops::ssd::SsdProblem;
use persistent::PHASE;

/// The variants. [`choice`] says which is taken for what; this order decides only where it is silent. The last one is there to verify
/// phases.
static VARIANTS: &[CudaVariant<SsdProblem>] =
    &[chunk::VARIANT, recurrent::VARIANT, persistent::VARIANT];

/// What GPUs have of ssd.
pub(crate) static CUDA: CudaTable<SsdProblem> =
    CudaTable { preferred, choice_tables, phase: Some(PHASE), ..CudaTable::new(VARIANTS, bundled) };

/// What the bundle holds of ssd.
fn bundled() -> Vec<KernelSource> {
    let mut sources = Vec::new();
    for arch in BundledArch::ALL {
        sources.extend(chunk::bundled(arch));
        sources.extend(recurrent::bundled(arch));
    }
    sources
}
