//! The CUDA release that libraries need, and the architectures of their GPU code.

use facts::CompactCollect;
use facts::Elf;
use knowledge::{GpuArchitecture, WheelCode};
use std::collections::{BTreeMap, BTreeSet};

/// Libraries of the CUDA toolkit whose soname has the toolkit's major version.
const TOOLKIT: [&str; 2] = ["libcudart.so.", "libnvrtc.so."];

/// Summarizes the libraries of one wheel. An architecture counts if at least a tenth of one library's fatbin containers
/// have it: a rarer one is the linker's stub or a special case. Libraries that are for disjoint GPU generations contain
/// optional special kernels, which the package loads only on those GPUs, and are ignored (torchao).
pub fn code_of<'a>(libraries: impl Iterator<Item = &'a Elf>) -> WheelCode {
    let mut cuda = BTreeSet::new();
    let mut by_library: Vec<BTreeSet<GpuArchitecture>> = Vec::new();
    for elf in libraries {
        let majors = elf.needed.iter().filter_map(|needed| {
            TOOLKIT.iter().find_map(|name| needed.name.strip_prefix(name)?.parse::<u32>().ok())
        });
        cuda.extend(majors);
        let mut containers: BTreeMap<GpuArchitecture, u32> = BTreeMap::new();
        let mut total = 0_u32;
        for group in &elf.gpu_code {
            total = total.saturating_add(group.containers);
            let images = group.images.iter();
            let here: BTreeSet<GpuArchitecture> = images
                .filter_map(|image| GpuArchitecture::parse(&image.architecture()))
                .compact_set();
            for architecture in here {
                let count = containers.entry(architecture).or_default();
                *count = count.saturating_add(group.containers);
            }
        }
        let common = containers.into_iter().filter(|(_, count)| count.saturating_mul(10) >= total);
        by_library.push(common.map(|(architecture, _)| architecture).collect());
    }
    by_library.retain(|architectures| !architectures.is_empty());
    let generations: Vec<BTreeSet<u32>> =
        by_library.iter().map(|all| all.iter().map(|one| one.sm.0).collect()).collect();
    let apart = generations.len() > 1
        && (0..generations.len())
            .all(|at| generations[..at].iter().all(|other| other.is_disjoint(&generations[at])));
    let architectures: BTreeSet<GpuArchitecture> =
        if apart { BTreeSet::new() } else { by_library.into_iter().flatten().collect() };
    // A wheel with a library per CUDA release (bitsandbytes) needs none in particular.
    let cuda = cuda.first().copied().filter(|_| cuda.len() == 1);
    WheelCode { cuda, architectures: architectures.into_iter().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use facts::{GpuCode, GpuImage, GpuImageKind, GpuReach, Needed};

    fn group(containers: u32, images: &[(GpuImageKind, (u32, u32), GpuReach)]) -> GpuCode {
        let image = |(kind, sm, reach): &(GpuImageKind, (u32, u32), GpuReach)| GpuImage {
            kind: *kind,
            sm: *sm,
            reach: *reach,
            ptx_isa: None,
            compressed: false,
        };
        GpuCode { containers, images: images.iter().map(image).collect() }
    }

    #[test]
    fn linker_stub_is_no_gpu_code() {
        let needed =
            |name: &str| Needed { name: name.to_owned(), path: None, found_by: None, other: None };
        let (cubin, ptx, onward) = (GpuImageKind::Cubin, GpuImageKind::Ptx, GpuReach::Onward);
        let elf = Elf {
            needed: vec![needed("libc.so.6"), needed("libcudart.so.13")],
            gpu_code: vec![
                group(40, &[(cubin, (7, 5), onward), (cubin, (8, 0), onward)]),
                group(10, &[(cubin, (9, 0), GpuReach::Architecture)]),
                group(1, &[(cubin, (5, 2), onward), (ptx, (5, 2), onward)]),
            ],
            ..Elf::default()
        };
        let code = code_of([&elf, &Elf::default()].into_iter());
        assert_eq!((code.cuda, code.words().as_str()), (Some(13), "sm_75 sm_80 sm_90a"));
        assert!(!code.runs_on((7, 0), false) && code.runs_on((8, 6), false));
        assert_eq!(code_of([&Elf::default()].into_iter()), WheelCode::default());
        let of = |sm: (u32, u32)| Elf {
            gpu_code: vec![group(9, &[(cubin, sm, GpuReach::Architecture)])],
            ..Elf::default()
        };
        let special = code_of([&of((9, 0)), &of((10, 0))].into_iter());
        assert!(special.architectures.is_empty() && special.runs_on((8, 6), false));
        let general = code_of([&of((9, 0)), &of((10, 0)), &elf].into_iter());
        assert!(!general.runs_on((7, 0), false), "the first one shares a generation with another");
        assert!(!code_of([&of((9, 0))].into_iter()).runs_on((8, 6), false), "one library alone");
        let older = Elf { needed: vec![needed("libcudart.so.12")], ..Elf::default() };
        assert_eq!(code_of([&elf, &older].into_iter()).cuda, None, "a library for each CUDA");
    }
}
