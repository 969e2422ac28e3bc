//! Attention on NVIDIA GPUs: one file per variant next to its kernel, and the table that chooses among them.

pub(crate) mod backward;
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

/// The variants. [`choice`] selects one per problem; this order decides only where no rule of the table fits.
static VARIANTS: &[CudaVariant<AttentionProblem>] = &[
    hopper::VARIANT,
    wide::WIDE,
    wide::CLUSTER,
    hopper_latent::VARIANT,
    mma::VARIANT,
    decode::VARIANT,
];

/// The attention variants of NVIDIA GPUs.
pub(crate) static CUDA: CudaTable<AttentionProblem> =
    CudaTable { preferred, choice_tables, ..CudaTable::new(VARIANTS, bundled) };

/// The attention kernels of the bundle.
fn bundled() -> Vec<KernelSource> {
    let mut sources = hopper::bundled();
    sources.extend(wide::bundled());
    sources.extend(hopper_latent::bundled());
    sources.extend(BundledArch::ALL.iter().flat_map(mma::bundled));
    sources.extend(BundledArch::ALL.iter().flat_map(decode::bundled));
    sources
}
