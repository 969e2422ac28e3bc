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

use choice::{choice_tables, preferred};
pub use tuned::{MeasuredVariant, tuned};

use crate::{CudaTable, CudaVariant};
use device::cuda::{BundledArch, KernelSource};
use ops::attention::AttentionProblem;

/// The variants. [`choice`] says which is taken for what; this order decides only where it is silent.
static VARIANTS: &[CudaVariant<AttentionProblem>] = &[
    hopper::VARIANT,
    wide::WIDE,
    wide::CLUSTER,
    hopper_latent::VARIANT,
    mma::VARIANT,
    decode::VARIANT,
];

/// What GPUs have of attention.
pub(crate) static CUDA: CudaTable<AttentionProblem> =
    CudaTable { preferred, choice_tables, ..CudaTable::new(VARIANTS, bundled) };

/// What the bundle holds of attention.
fn bundled() -> Vec<KernelSource> {
    let mut sources = hopper::bundled();
    sources.extend(wide::bundled());
    sources.extend(hopper_latent::bundled());
    sources.extend(BundledArch::ALL.iter().flat_map(mma::bundled));
    sources.extend(BundledArch::ALL.iter().flat_map(decode::bundled));
    sources
}
