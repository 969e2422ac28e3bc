//! Sampling on NVIDIA GPUs from compute capability 8.0 on.

mod bisect;

use crate::{CudaTable, CudaVariant};
use device::cuda::{BundledArch, KernelSource};
use ops::sampling::SamplingProblem;

/// The variants, preferred first.
static VARIANTS: &[CudaVariant<SamplingProblem>] = &[bisect::VARIANT];

/// The sampling op's variants and bundled kernels.
pub(crate) static CUDA: CudaTable<SamplingProblem> = CudaTable::new(VARIANTS, bundled);

/// The bundled kernels of sampling.
fn bundled() -> Vec<KernelSource> {
    BundledArch::ALL.iter().flat_map(bisect::bundled).collect()
}
