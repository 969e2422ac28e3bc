//! Whether the GPU code of a file runs on a GPU: the driver's rule, applied to each container (fatbin) of images.

use crate::data::ptx_isa;
use crate::gpu::Sm;
use crate::native::Native;
use facts::CompactCollect;
use facts::{GpuCode, GpuImage, GpuImageKind, GpuReach, Machine, MachineKind};
use knowledge::Minor;
use std::collections::BTreeSet;

/// A GPU and the facts that decide which code it runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) sm: Sm,
    /// On Tegra, a cubin runs only on its own architecture.
    pub(crate) tegra: bool,
    /// The newest PTX ISA that the driver compiles; `None` if unknown, in which case every version counts as supported.
    pub(crate) ptx_isa: Option<Minor>,
}

/// How a GPU runs the kernels of a container, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KernelSupport {
    /// Machine code (cubin).
    Native,
    /// PTX that the driver compiles when it is loaded.
    Compiled,
    /// PTX of an ISA that the driver does not support.
    TooNew,
    /// No image runs.
    None,
}

/// The number of containers by how a GPU runs them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Coverage {
    pub(crate) native: u32,
    pub(crate) compiled: u32,
    pub(crate) too_new: u32,
    pub(crate) none: u32,
}

impl Target {
    pub(crate) fn of(machine: &Machine, sm: Sm) -> Self {
        let limit = machine.driver.as_ref().and_then(|driver| driver.cuda_limit.as_ref());
        Self {
            sm,
            tegra: machine.kind == MachineKind::Jetson,
            ptx_isa: limit.and_then(|limit| ptx_isa::of_cuda(limit.value)),
        }
    }

    /// How one image runs on this GPU.
    fn support(&self, image: &GpuImage) -> KernelSupport {
        let family = image.sm.0 == self.sm.0 && image.sm.1 <= self.sm.1;
        let fits = match (image.reach, image.kind) {
            (GpuReach::Architecture, _) => image.sm == self.sm,
            (GpuReach::Family, _) => family,
            (GpuReach::Onward, GpuImageKind::Ptx) => image.sm <= self.sm,
            (GpuReach::Onward, _) if self.tegra => image.sm == self.sm,
            (GpuReach::Onward, _) => family,
        };
        let known = match (image.ptx_isa, self.ptx_isa) {
            (Some(isa), Some(newest)) => isa <= newest,
            _ => true,
        };
        match (fits, image.kind) {
            (true, GpuImageKind::Cubin) => KernelSupport::Native,
            (true, GpuImageKind::Ptx) if known => KernelSupport::Compiled,
            (true, GpuImageKind::Ptx) => KernelSupport::TooNew,
            _ => KernelSupport::None,
        }
    }

    /// Counts the containers of a file by their best image.
    pub(crate) fn coverage(&self, code: &[GpuCode]) -> Coverage {
        let mut coverage = Coverage::default();
        for group in code {
            let support = group
                .images
                .iter()
                .map(|image| self.support(image))
                .min()
                .unwrap_or(KernelSupport::None);
            let count = match support {
                KernelSupport::Native => &mut coverage.native,
                KernelSupport::Compiled => &mut coverage.compiled,
                KernelSupport::TooNew => &mut coverage.too_new,
                KernelSupport::None => &mut coverage.none,
            };
            *count = count.saturating_add(group.containers);
        }
        coverage
    }
}

impl Coverage {
    pub(crate) fn add(self, other: Self) -> Self {
        Self {
            native: self.native.saturating_add(other.native),
            compiled: self.compiled.saturating_add(other.compiled),
            too_new: self.too_new.saturating_add(other.too_new),
            none: self.none.saturating_add(other.none),
        }
    }

    /// The number of containers.
    pub(crate) fn total(self) -> u32 {
        let sum = self.native.saturating_add(self.compiled);
        sum.saturating_add(self.too_new).saturating_add(self.none)
    }

    /// The number of containers that run.
    pub(crate) fn runs(self) -> u32 {
        self.native.saturating_add(self.compiled)
    }
}

/// Whether each file of a package has code for GPU generations that no other file has. Such a package (torchao) loads
/// only the files for the GPU, if there are any.
pub(crate) fn is_split_by_generation(one: &Native<'_>) -> bool {
    let owner = one.owner_name();
    let mine = crate::native::files(one.env).filter(|native| {
        !native.elf.gpu_code.is_empty() && owner.is_some() && native.owner_name() == owner
    });
    let generations: Vec<BTreeSet<u32>> = mine
        .map(|native| {
            let images = native.elf.gpu_code.iter().flat_map(|code| &code.images);
            images.filter(|image| image.kind != GpuImageKind::Other).map(|it| it.sm.0).collect()
        })
        .collect();
    generations.len() > 1
        && (0..generations.len())
            .all(|at| generations[..at].iter().all(|other| other.is_disjoint(&generations[at])))
}

/// The architectures in a file as torch lists them: `sm_80 sm_90a compute_90 (PTX 8.7)`.
pub(crate) fn architectures(code: &[GpuCode]) -> String {
    let images: BTreeSet<(GpuImageKind, Sm, GpuReach, Option<Minor>)> = code
        .iter()
        .flat_map(|group| &group.images)
        .filter(|image| image.kind != GpuImageKind::Other)
        .map(|image| (image.kind, image.sm, image.reach, image.ptx_isa))
        .compact_set();
    let words = images.into_iter().map(|(kind, sm, reach, ptx_isa)| {
        let image = GpuImage { kind, sm, reach, ptx_isa, compressed: false };
        match ptx_isa {
            Some((major, minor)) => format!("{} (PTX {major}.{minor})", image.architecture()),
            None => image.architecture(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Whether a file's GPU code is evidence about its package. NVIDIA's libraries select one of several libraries per
/// operation, and a package never loads all its builds for several CUDA releases.
pub(crate) fn counts(native: &Native<'_>) -> bool {
    let by_nvidia = native.owner_name().is_some_and(|name| name.starts_with("nvidia-"));
    !native.elf.gpu_code.is_empty() && !by_nvidia && !native.is_one_of_several()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::image;

    #[test]
    fn images_run_by_architecture_and_ptx_isa() {
        let target = |sm| Target { sm, tegra: false, ptx_isa: Some((8, 7)) };
        let check = |words: &str, target: Target, expect| {
            assert_eq!(target.support(&image(words)), expect, "{words} on {target:?}");
        };
        use KernelSupport::{Compiled, Native, TooNew};
        // A cubin runs on GPUs of its major version from its minor version on.
        check("sm_80", target((8, 6)), Native);
        check("sm_86", target((8, 0)), KernelSupport::None);
        check("sm_80", target((9, 0)), KernelSupport::None);
        check("sm_120", target((12, 1)), Native);
        check("sm_100", target((10, 3)), Native);
        // `a` code runs only on its own architecture, `f` code in its family.
        check("sm_90a", target((9, 0)), Native);
        check("sm_100a", target((10, 3)), KernelSupport::None);
        check("sm_100f", target((10, 3)), Native);
        check("sm_103f", target((10, 0)), KernelSupport::None);
        check("sm_100f", target((12, 0)), KernelSupport::None);
        // The driver compiles PTX for newer GPUs if it supports the ISA version.
        check("compute_80 8.7", target((12, 0)), Compiled);
        check("compute_80 8.8", target((12, 0)), TooNew);
        check("compute_90 7.8", target((8, 9)), KernelSupport::None);
        check("compute_90a 8.0", target((10, 0)), KernelSupport::None);
        check("compute_90a 8.0", target((9, 0)), Compiled);
        // Tegra runs no cubin of a lower minor version, but compiles PTX.
        let orin = Target { sm: (8, 7), tegra: true, ptx_isa: None };
        check("sm_80", orin, KernelSupport::None);
        check("sm_87", orin, Native);
        check("compute_80 9.9", orin, Compiled);
    }

    #[test]
    fn a_container_counts_by_its_best_image() {
        let group = |containers, words: &[&str]| GpuCode {
            containers,
            images: words.iter().map(|words| image(words)).collect(),
        };
        let code = [
            group(3, &["sm_80", "sm_90a", "compute_80 8.0"]),
            group(2, &["sm_90a"]),
            group(1, &["compute_80 8.8"]),
        ];
        let check = |sm, expect: (u32, u32, u32, u32)| {
            let got = Target { sm, tegra: false, ptx_isa: Some((8, 7)) }.coverage(&code);
            assert_eq!((got.native, got.compiled, got.too_new, got.none), expect, "{sm:?}");
        };
        check((9, 0), (5, 0, 1, 0));
        check((8, 6), (3, 0, 1, 2));
        check((12, 0), (0, 3, 1, 2));
        check((7, 5), (0, 0, 0, 6));
        assert_eq!(architectures(&code), "sm_80 sm_90a compute_80 (PTX 8.0) compute_80 (PTX 8.8)");
    }
}
