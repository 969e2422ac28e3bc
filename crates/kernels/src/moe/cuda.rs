//! Routed experts on NVIDIA GPUs from compute capability 8.0 on. `cuda/README.md` has the design and the figures.

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

pub(super) use choice::{choice_tables, preferred};
pub(super) use decode::reads_once;
pub(super) use operands::takes;
pub(super) use persistent::PHASE;

use super::{MoeProblem, NarrowExperts};
use crate::DType;
use crate::cuda::CudaVariant;
use crate::linear::SCALED;
use device::cuda::{BundledArch, KernelSource};

/// The variants. [`choice`] says which is taken for what; this order decides only where it is silent. The last one is there to verify
/// phases, and others take what it takes.
pub(super) static VARIANTS: &[CudaVariant<MoeProblem>] =
    &[decode::VARIANT, narrow::VARIANT, hopper::VARIANT, grouped::VARIANT, persistent::VARIANT];

/// What the bundle holds of moe: kernels know no shape.
pub(super) fn bundled() -> Vec<KernelSource> {
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
