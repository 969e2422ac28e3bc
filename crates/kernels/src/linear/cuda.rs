//! linear on NVIDIA GPUs from compute capability 8.0 on.

mod direct;
mod hopper;
mod mma;
mod operands;
mod persistent;
mod stream;

pub(super) use persistent::PHASE;

use super::LinearProblem;
use crate::ChoiceTable;
use crate::cuda::CudaVariant;
use device::cuda::{BundledArch, KernelSource};

/// The variants, best first. The last one is there to verify phases, and others take what it takes.
pub(super) static VARIANTS: &[CudaVariant<LinearProblem>] =
    &[direct::VARIANT, stream::VARIANT, hopper::VARIANT, mma::VARIANT, persistent::VARIANT];

/// Every table, printable.
pub(super) fn choice_tables() -> Vec<ChoiceTable> {
    vec![hopper::table(), mma::table()]
}

/// What the bundle holds of linear.
pub(super) fn bundled() -> Vec<KernelSource> {
    let mut sources = hopper::bundled();
    sources.extend(direct::bundled());
    sources.extend(operands::bundled());
    for of in [mma::bundled, stream::bundled] {
        sources.extend(BundledArch::ALL.iter().flat_map(of));
    }
    sources
}
