//! The names of CUDA's libraries: which of NVIDIA's packages brings each, and of which release it is.

use crate::native::Native;
use crate::requirement;
use std::collections::BTreeSet;

/// The nvidia package's name for a library; `None` for what is none of CUDA's.
pub(crate) fn known(name: &str) -> Option<&'static str> {
    let stem = name.split(".so").next()?;
    PACKAGES.iter().find(|(file, _)| *file == stem).map(|(_, package)| *package)
}

/// Libraries and the nvidia packages that bring them. A longer name stands before one it begins with.
const PACKAGES: [(&str, &str); 16] = [
    ("libcublasLt", "cublas"),
    ("libcublas", "cublas"),
    ("libcudnn", "cudnn"),
    ("libcufft", "cufft"),
    ("libcurand", "curand"),
    ("libcusparseLt", "cusparselt"),
    ("libcusparse", "cusparse"),
    ("libcusolver", "cusolver"),
    ("libnccl", "nccl"),
    ("libnvrtc", "cuda-nvrtc"),
    ("libnvJitLink", "nvjitlink"),
    ("libcupti", "cuda-cupti"),
    ("libcufile", "cufile"),
    ("libnvToolsExt", "nvtx"),
    ("libnvshmem_host", "nvshmem"),
    ("libcudart", "cuda-runtime"),
];

/// The nvidia package's name for the library a text names.
pub(crate) fn library(text: &str) -> &'static str {
    let named = PACKAGES.iter().find(|(file, _)| text.contains(file));
    named.map_or("cuda-runtime", |(_, package)| package)
}

/// The first CUDA library with a major version that a text names: `libcudart.so.11.0`.
pub(crate) fn soname(text: &str) -> Option<&str> {
    let letters = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let names = text.match_indices("lib").map(|(at, _)| {
        let rest = &text[at..];
        rest[..rest.find(|c: char| !letters(c)).unwrap_or(rest.len())].trim_end_matches('.')
    });
    names.filter(|name| known(name).is_some()).find(|name| major(name).is_some())
}

/// The distribution that brings a library for a CUDA release: from CUDA 13 on only those with versions of their own have its
/// number in their names.
pub(crate) fn distribution(package: &str, cuda: u32) -> String {
    match (package, cuda) {
        ("cudnn" | "nccl" | "cusparselt" | "nvshmem", _) | (_, ..=12) => {
            format!("nvidia-{package}-cu{cuda}")
        }
        _ => format!("nvidia-{package}"),
    }
}

/// The major version in a library's name: 12 of `libcudart.so.12`, 11 of `libcudart.so.11.0`.
pub(crate) fn major(name: &str) -> Option<u32> {
    name.split_once(".so.")?.1.split('.').next()?.parse().ok()
}

/// The CUDA release that a library is of, by its name: some count their versions with CUDA's, some are one behind.
pub(crate) fn cuda_of_library(name: &str) -> Option<u32> {
    let number = major(name)?;
    match known(name)? {
        "cublas" | "cuda-runtime" | "cuda-nvrtc" | "nvjitlink" | "cuda-cupti" => Some(number),
        "cufft" | "cusolver" => Some(number + 1),
        _ => None,
    }
}

/// A package with its extras that bring NVIDIA's libraries: `onnxruntime-gpu[cuda,cudnn]==1.31.1`.
pub(crate) fn own_extras(native: &Native<'_>) -> Option<String> {
    let dist = native.owner()?;
    let lines = dist.requires.iter().filter_map(|line| requirement::parse(line));
    let bringing = lines.filter(|wanted| wanted.name.starts_with("nvidia-"));
    let extras: BTreeSet<String> = bringing
        .filter_map(|wanted| {
            let after = wanted.marker.split_once("extra")?.1;
            Some(after.split(['"', '\'']).nth(1)?.to_owned())
        })
        .collect();
    let extras: Vec<String> = extras.into_iter().collect();
    let public = dist.version.split('+').next()?;
    (!extras.is_empty())
        .then(|| Some(format!("{}[{}]=={public}", native.owner_name()?, extras.join(","))))?
}

/// Whether it is torch's own, or its package requires torch, or it needs torch's libraries.
pub(crate) fn is_for_torch(native: &Native<'_>) -> bool {
    let library = |name: &str| name.starts_with("libtorch") || name.starts_with("libc10");
    let requires = |line: &String| requirement::parse(line).is_some_and(|it| it.name == "torch");
    native.is_torch()
        || native.is_nvidia()
        || native.elf.needed.iter().any(|needed| library(&needed.name))
        || native.owner().is_some_and(|dist| dist.requires.iter().any(requires))
}

/// Whether its search path leads to NVIDIA's packages.
pub(crate) fn looks_into_packages(native: &Native<'_>) -> bool {
    native.elf.search.iter().any(|folder| folder.contains("nvidia"))
}

/// Whether torch's own search finds a library: in `nvidia/<package>/lib` of a folder of packages.
pub(crate) fn is_preloaded(path: &str) -> bool {
    let mut parts = path.rsplit('/').skip(1);
    parts.next() == Some("lib") && parts.nth(1) == Some("nvidia")
}
