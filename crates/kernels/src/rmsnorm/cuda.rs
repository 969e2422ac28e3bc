//! RMSNorm on NVIDIA GPUs from compute capability 8.0 on.

pub(crate) mod rows;

use super::RmsNormProblem;
use crate::cuda::CudaVariant;
use device::cuda::{BundledArch, KernelSource};

/// The variants, best first.
pub(super) const VARIANTS: &[CudaVariant<RmsNormProblem>] = &[rows::VARIANT];

/// What the bundle holds of rmsnorm.
pub(super) fn bundled() -> Vec<KernelSource> {
    BundledArch::ALL.iter().flat_map(rows::bundled).collect()
}
