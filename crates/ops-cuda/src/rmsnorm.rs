//! RMSNorm on NVIDIA GPUs from compute capability 8.0 on.

mod persistent;
pub(crate) mod rows;

use crate::{CudaTable, CudaVariant};
use device::cuda::{BundledArch, KernelSource};
use ops::rmsnorm::RmsNormProblem;
use persistent::PHASE;

/// The variants, best first. The last one is there to verify phases, and the other takes what it takes.
static VARIANTS: &[CudaVariant<RmsNormProblem>] = &[rows::VARIANT, persistent::VARIANT];

/// What GPUs have of rmsnorm.
pub(crate) static CUDA: CudaTable<RmsNormProblem> =
    CudaTable { phase: Some(PHASE), ..CudaTable::new(VARIANTS, bundled) };

/// What the bundle holds of rmsnorm.
fn bundled() -> Vec<KernelSource> {
    BundledArch::ALL.iter().flat_map(rows::bundled).collect()
}
