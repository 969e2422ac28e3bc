//! Sampling on NVIDIA GPUs from compute capability 8.0 on.

mod bisect;

use super::SamplingProblem;
use crate::cuda::CudaVariant;
use device::cuda::{BundledArch, KernelSource};

/// The variants, best first.
pub(super) static VARIANTS: &[CudaVariant<SamplingProblem>] = &[bisect::VARIANT];

/// What the bundle holds of sampling.
pub(super) fn bundled() -> Vec<KernelSource> {
    BundledArch::ALL.iter().flat_map(bisect::bundled).collect()
}
