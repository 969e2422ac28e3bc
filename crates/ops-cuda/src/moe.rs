//! Routed experts on NVIDIA GPUs from compute capability 8.0 on. `moe/README.md` has the design and the figures.

mod choice;
mod clamp;
mod decode;
mod grouped;
mod hopper;
mod narrow;
mod operands;
mod persistent;
mod route;
mod sum;

use crate::{CudaTable, CudaVariant};
use choice::{choice_tables, preferred};
pub use decode::reads_once;
use device::cuda::{BundledArch, KernelSource};
pub use operands::takes;
use ops::DType;
use ops::linear::SCALED;
use ops::moe::{MoeProblem, QuantizedExperts};
use persistent::STAGE_PLANNER;

/// The variants. [`choice`] selects one; this order decides only for problems that its table does not name. The last
/// variant exists to verify stages of persistent kernels.
static VARIANTS: &[CudaVariant<MoeProblem>] =
    &[decode::VARIANT, narrow::VARIANT, hopper::VARIANT, grouped::VARIANT, persistent::VARIANT];

/// The moe op's variants, choice tables, bundled kernels and persistent-kernel stage.
pub(crate) static CUDA: CudaTable<MoeProblem> = CudaTable {
    preferred: |problem, _| preferred(problem),
    choice_tables,
    stage_planner: Some(STAGE_PLANNER),
    ..CudaTable::new(VARIANTS, bundled)
};

/// The bundled kernels of moe, which are compiled for no particular shape.
fn bundled() -> Vec<KernelSource> {
    let mut sources = Vec::new();
    for arch in BundledArch::ALL {
        sources.extend(decode::bundled(DType::Bf16, None, arch));
        if arch.compute == operands::HOPPER {
            for dtype in [DType::E4m3, DType::U4] {
                let narrow = QuantizedExperts {
                    dtype,
                    scales_per_row: [1; 2],
                    group: SCALED,
                    offset: false,
                };
                // int4 by groups and int8 by rows, as published checkpoints have them.
                let scales_per_row = if dtype == DType::U4 { [2; 2] } else { [1; 2] };
                let narrow = QuantizedExperts { scales_per_row, ..narrow };
                sources.extend(decode::bundled(DType::Bf16, Some(narrow), arch));
                sources.extend(narrow::bundled(narrow, &arch.arch()));
                if dtype == DType::E4m3 {
                    // Experts with limits are published in MXFP4 and loaded as e4m3.
                    sources.push(clamp::source(DType::Bf16, Some(narrow), &arch.arch()));
                }
            }
            sources.extend(hopper::bundled(DType::Bf16, &arch.arch()));
            sources.push(clamp::source(DType::Bf16, None, &arch.arch()));
        }
    }
    sources
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_defines_the_named_function() {
        for source in bundled() {
            assert!(source.text().contains(&format!("{}(", source.name())), "{}", source.label());
        }
    }
}
