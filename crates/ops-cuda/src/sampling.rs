//! Sampling on NVIDIA GPUs from compute capability 8.0 on.

mod bisect;

use crate::{CudaTable, CudaVariant};
use device::cuda::{BundledArch, KernelSource};
use ops::sampling::SamplingProblem;

/// The variants, best first.
static VARIANTS: &[CudaVariant<SamplingProblem>] = &[bisect::VARIANT];

/// What GPUs have of sampling.
pub(crate) static CUDA: CudaTable<SamplingProblem> = CudaTable::new(VARIANTS, bundled);

/// What the bundle holds of sampling.
fn bundled() -> Vec<KernelSource> {
    BundledArch::ALL.iter().flat_map(bisect::bundled).collect()
}
