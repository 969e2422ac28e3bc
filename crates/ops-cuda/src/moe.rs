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
use ops::moe::{MoeProblem, NarrowExperts};
use persistent::PHASE;

/// The variants. [`choice`] says which is taken for what; this order decides only where it is silent. The last one is there to verify
/// phases, and others take what it takes.
static VARIANTS: &[CudaVariant<MoeProblem>] =
    &[decode::VARIANT, narrow::VARIANT, hopper::VARIANT, grouped::VARIANT, persistent::VARIANT];

/// What GPUs have of moe.
pub(crate) static CUDA: CudaTable<MoeProblem> = CudaTable {
    preferred: |problem, _| preferred(problem),
    choice_tables,
    phase: Some(PHASE),
    ..CudaTable::new(VARIANTS, bundled)
};

/// What the bundle holds of moe: kernels know no shape.
fn bundled() -> Vec<KernelSource> {
    let mut sources = Vec::new();
    for arch in BundledArch::ALL {
        sources.extend(decode::bundled(DType::Bf16, None, arch));
        if arch.compute == operands::HOPPER {
            for dtype in [DType::E4m3, DType::U4] {
                let narrow = NarrowExperts { dtype, factors: [1; 2], group: SCALED, offset: false };
                // Four bits by groups, and eight by rows, as they are published.
                let factors = if dtype == DType::U4 { [2; 2] } else { [1; 2] };
                let narrow = NarrowExperts { factors, ..narrow };
                sources.extend(decode::bundled(DType::Bf16, Some(narrow), arch));
                sources.extend(narrow::bundled(narrow, &arch.arch()));
                if dtype == DType::E4m3 {
                    // In which experts with limits are, that are published in MXFP4.
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
    fn the_function_a_source_names_is_in_its_text() {
        for source in bundled() {
            assert!(source.text().contains(&format!("{}(", source.name())), "{}", source.label());
        }
    }
}
