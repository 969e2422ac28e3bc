//! The state-space scan (SSD) on NVIDIA GPUs: a file for each variant next to its kernels, and the table that selects
//! one.

pub(crate) mod backward;
mod choice;
mod chunk;
mod operands;
mod persistent;
mod recurrent;
mod segments;

use crate::{CudaTable, CudaVariant};
use choice::{choice_tables, preferred};
use device::cuda::{BundledArch, KernelSource};
use ops::ssd::SsdProblem;
use persistent::STAGE_PLANNER;

/// The variants. [`choice`] selects one; this order decides only for problems that its table does not name. The last
/// variant exists to verify stages of persistent kernels.
static VARIANTS: &[CudaVariant<SsdProblem>] =
    &[chunk::VARIANT, recurrent::VARIANT, persistent::VARIANT];

/// The ssd op's variants, choice tables, bundled kernels and persistent-kernel stage.
pub(crate) static CUDA: CudaTable<SsdProblem> = CudaTable {
    preferred,
    choice_tables,
    stage_planner: Some(STAGE_PLANNER),
    ..CudaTable::new(VARIANTS, bundled)
};

/// The bundled kernels of ssd.
fn bundled() -> Vec<KernelSource> {
    let mut sources = Vec::new();
    for arch in BundledArch::ALL {
        sources.extend(chunk::bundled(arch));
        sources.extend(recurrent::bundled(arch));
    }
    sources
}
