//! linear on NVIDIA GPUs from compute capability 8.0 on.

mod direct;
mod hopper;
mod mma;
mod operands;
mod persistent;
mod stream;

use crate::{CudaTable, CudaVariant};
use device::cuda::{BundledArch, KernelSource};
use ops::ChoiceTable;
use ops::linear::LinearProblem;
use persistent::STAGE_PLANNER;

/// The variants, preferred first. The last one exists to verify stages of persistent kernels; another variant is
/// preferred for every call that it can run.
static VARIANTS: &[CudaVariant<LinearProblem>] =
    &[direct::VARIANT, stream::VARIANT, hopper::VARIANT, mma::VARIANT, persistent::VARIANT];

/// The linear op's variants, choice tables, bundled kernels and persistent-kernel stage.
pub(crate) static CUDA: CudaTable<LinearProblem> = CudaTable {
    choice_tables,
    stage_planner: Some(STAGE_PLANNER),
    ..CudaTable::new(VARIANTS, bundled)
};

/// The choice tables, for printing.
fn choice_tables() -> Vec<ChoiceTable> {
    vec![hopper::table(), mma::table()]
}

/// The bundled kernels of linear.
fn bundled() -> Vec<KernelSource> {
    let mut sources = hopper::bundled();
    sources.extend(direct::bundled());
    sources.extend(operands::bundled());
    for of in [mma::bundled, stream::bundled] {
        sources.extend(BundledArch::ALL.iter().flat_map(of));
    }
    sources
}
