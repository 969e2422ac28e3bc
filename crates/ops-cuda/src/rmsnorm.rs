//! RMSNorm and its gradient on NVIDIA GPUs from compute capability 8.0 on.

mod backward;
mod persistent;
pub(crate) mod rows;

use crate::{CudaTable, CudaVariant};
use device::cuda::{BundledArch, KernelSource};
use ops::GradientProblem;
use ops::rmsnorm::RmsNormProblem;
use persistent::STAGE_PLANNER;

/// The variants, preferred first. The last one exists to verify stages of persistent kernels; the other takes every
/// call that it takes.
static VARIANTS: &[CudaVariant<RmsNormProblem>] = &[rows::VARIANT, persistent::VARIANT];

/// The rmsnorm op's variants, bundled kernels and persistent-kernel stage.
pub(crate) static CUDA: CudaTable<RmsNormProblem> =
    CudaTable { stage_planner: Some(STAGE_PLANNER), ..CudaTable::new(VARIANTS, bundled) };

/// The variants of the gradient.
static BACKWARD_VARIANTS: &[CudaVariant<GradientProblem<RmsNormProblem>>] = &[backward::VARIANT];

/// The variants and bundled kernels of the gradient.
pub(crate) static BACKWARD: CudaTable<GradientProblem<RmsNormProblem>> =
    CudaTable::new(BACKWARD_VARIANTS, || {
        BundledArch::ALL.iter().flat_map(backward::bundled).collect()
    });

/// The bundled kernels of rmsnorm.
fn bundled() -> Vec<KernelSource> {
    BundledArch::ALL.iter().flat_map(rows::bundled).collect()
}
