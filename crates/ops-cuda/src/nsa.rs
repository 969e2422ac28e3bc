//! NSA on NVIDIA GPUs. [`stages`] has the steps that variants share (compression, compressed branch, selection); each
//! variant adds the selected and window branches. `nsa/README.md` has the design and the measurements.

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

/// The variants. [`choice`] selects one; this order decides only for problems that its table does not name.
static VARIANTS: &[CudaVariant<NsaProblem>] =
    &[step_cluster::VARIANT, blocks::VARIANT, step::VARIANT, gather::VARIANT];

/// The nsa op's variants, choice tables and bundled kernels.
pub(crate) static CUDA: CudaTable<NsaProblem> = CudaTable {
    preferred: |problem, _| preferred(problem),
    choice_tables,
    ..CudaTable::new(VARIANTS, bundled)
};

/// The bundled kernels of nsa: on Hopper, where they were measured, all for both common shapes; elsewhere those that
/// every call of the more common shape needs. Others are compiled on first use.
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
    fn every_bundled_gpu_has_all_kernels_of_a_call() {
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
    fn source_defines_the_named_function() {
        for source in bundled() {
            let wanted = format!("{}(const", source.name());
            assert!(source.text().contains(&wanted), "{}", source.label());
        }
    }
}
