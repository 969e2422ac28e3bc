//! Routed experts on NVIDIA GPUs from compute capability 8.0 on. `cuda/README.md` has the design and the figures.

mod choice;
mod decode;
mod grouped;
mod hopper;
mod operands;
mod route;
mod sum;

pub(super) use choice::{choice_tables, preferred};

use super::MoeProblem;
use crate::DType;
use crate::cuda::CudaVariant;
use device::cuda::{BundledArch, KernelSource};

/// The variants. [`choice`] says which is taken for what; this order decides only where it is silent.
pub(super) const VARIANTS: &[CudaVariant<MoeProblem>] =
    &[decode::VARIANT, hopper::VARIANT, grouped::VARIANT];

/// What the bundle holds of moe: kernels know no shape.
pub(super) fn bundled() -> Vec<KernelSource> {
    let mut sources = Vec::new();
    for arch in BundledArch::ALL {
        sources.extend(decode::bundled(DType::Bf16, arch));
        if arch.compute == operands::HOPPER {
            sources.extend(hopper::bundled(DType::Bf16, &arch.arch()));
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
