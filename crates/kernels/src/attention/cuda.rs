//! Attention on NVIDIA GPUs: one file a variant beside its kernel, and the table that chooses among them.

mod choice;
mod combine;
mod decode;
mod decode_tiles;
mod hopper;
mod hopper_latent;
mod mma;
mod operands;
mod tuned;
mod wide;

pub(super) use choice::{choice_tables, preferred};
pub use tuned::{MeasuredVariant, tuned};

use super::AttentionProblem;
use crate::cuda::CudaVariant;
use device::cuda::{BundledArch, KernelSource};

/// The variants. [`choice`] says which is taken for what; this order decides only where it is silent.
pub(super) static VARIANTS: &[CudaVariant<AttentionProblem>] = &[
    hopper::VARIANT,
    wide::WIDE,
    wide::CLUSTER,
    hopper_latent::VARIANT,
    mma::VARIANT,
    decode::VARIANT,
];

/// What the bundle holds of attention.
pub(super) fn bundled() -> Vec<KernelSource> {
    let mut sources = hopper::bundled();
    sources.extend(wide::bundled());
    sources.extend(hopper_latent::bundled());
    sources.extend(BundledArch::ALL.iter().flat_map(mma::bundled));
    sources.extend(BundledArch::ALL.iter().flat_map(decode::bundled));
    sources
}
