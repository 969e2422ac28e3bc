//! RMSNorm on NVIDIA GPUs from compute capability 8.0 on.

mod persistent;
pub(crate) mod rows;

pub(super) use persistent::PHASE;

use super::RmsNormProblem;
use crate::cuda::CudaVariant;
use device::cuda::{BundledArch, KernelSource};

/// The variants, best first. The last one is there to verify phases, and the other takes what it takes.
pub(super) static VARIANTS: &[CudaVariant<RmsNormProblem>] = &[rows::VARIANT, persistent::VARIANT];

/// What the bundle holds of rmsnorm.
pub(super) fn bundled() -> Vec<KernelSource> {
    BundledArch::ALL.iter().flat_map(rows::bundled).collect()
}
