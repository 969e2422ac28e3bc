//! NSA on NVIDIA GPUs. The steps that variants share (compression, compressed branch, selection) stand in [`stages`];
//! each variant adds how the selected and window branches are read. `nsa/README.md` has the design and the figures.

mod blocks;
mod choice;
mod gather;
mod operands;
mod stages;
mod step;
mod step_cluster;

use choice::{choice_tables, preferred};

use crate::{CudaTable, CudaVariant};
use device::cuda::{BundledArch, KernelSource};
use ops::DType;
use ops::nsa::NsaProblem;

/// The variants. [`choice`] says which is taken for what; this order decides only where it is silent.
static VARIANTS: &[CudaVariant<NsaProblem>] =
    &[step_cluster::VARIANT, blocks::VARIANT, step::VARIANT, gather::VARIANT];

/// What GPUs have of nsa.
pub(crate) static CUDA: CudaTable<NsaProblem> = CudaTable {
    preferred: |problem, _| preferred(problem),
    choice_tables,
    ..CudaTable::new(VARIANTS, bundled)
};

/// What the bundle holds of nsa: on Hopper, for which these kernels were measured, all of both common shapes; elsewhere what
/// any call of the commoner one needs. The rest is compiled where it is used.
fn bundled() -> Vec<KernelSource> {
    let mut sources = Vec::new();
    for arch in BundledArch::ALL {
        let hopper = arch.compute == operands::HOPPER;
        let shapes: &[(usize, usize)] =
            if hopper { &[(128, 128), (192, 128)] } else { &[(128, 128)] };
        for dims in shapes {
            sources.extend(stages::bundled(DType::Bf16, *dims, arch));
            sources.extend(gather::bundled(DType::Bf16, *dims, arch));
            if hopper {
                sources.extend(step::bundled(DType::Bf16, *dims, arch));
                sources.extend(step_cluster::bundled(DType::Bf16, *dims, arch));
            }
        }
        if hopper {
            sources.extend(blocks::bundled(DType::Bf16, (128, 128), arch));
        }
    }
    sources
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_bundled_gpu_has_the_steps_of_a_call() {
        let sources = bundled();
        for arch in BundledArch::ALL {
            let of_arch = sources.iter().filter(|source| *source.arch() == arch.arch());
            let names: BTreeSet<&str> = of_arch.map(KernelSource::name).collect();
            for name in ["nsa_compress", "nsa_select", "nsa_gather"] {
                assert!(names.contains(name), "{} has no {name}", arch.arch());
            }
            let compressed = names.iter().any(|name| name.starts_with("nsa_compressed"));
            assert!(compressed, "{} has no compressed branch", arch.arch());
        }
    }

    #[test]
    fn the_function_a_source_names_is_in_its_text() {
        for source in bundled() {
            let wanted = format!("{}(const", source.name());
            assert!(source.text().contains(&wanted), "{}", source.label());
        }
    }
}
