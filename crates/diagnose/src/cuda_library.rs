//! Names of CUDA libraries: the NVIDIA package that ships each one, and the CUDA release that it belongs to.

use crate::native::Native;
use crate::requirement;
use std::collections::BTreeSet;

/// The name of a library's NVIDIA package; `None` for a library that is not part of CUDA.
pub(crate) fn known(name: &str) -> Option<&'static str> {
    let stem = name.split(".so").next()?;
    PACKAGES.iter().find(|(file, _)| *file == stem).map(|(_, package)| *package)
}

/// The NVIDIA package of a library that consists of several files, by any of them: `libcudnn_adv.so.9`.
pub(crate) fn family(name: &str) -> Option<&'static str> {
    let stem = name.split(".so").next()?;
    let begins = |(file, _): &&(&str, &str)| {
        stem.strip_prefix(file).is_some_and(|rest| rest.is_empty() || rest.starts_with(['_', '-']))
    };
    PACKAGES.iter().find(begins).map(|(_, package)| *package)
}

/// Libraries and the NVIDIA packages that ship them. A name precedes its own prefixes, since the first match counts.
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

/// The NVIDIA package of the library that a text names; `cuda-runtime` if it names none.
pub(crate) fn library(text: &str) -> &'static str {
    let named = PACKAGES.iter().find(|(file, _)| text.contains(file));
    named.map_or("cuda-runtime", |(_, package)| package)
}

/// The first CUDA library with a major version that a text names: `libcudart.so.11.0`.
pub(crate) fn soname(text: &str) -> Option<&str> {
    sonames(text).first().copied()
}

/// Every CUDA library with a major version that a text names, each once.
pub(crate) fn sonames(text: &str) -> Vec<&str> {
    let letters = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let mut all: Vec<&str> = Vec::new();
    for (at, _) in text.match_indices("lib") {
        let rest = &text[at..];
        let end = rest.find(|c: char| !letters(c)).unwrap_or(rest.len());
        let name = rest[..end].trim_end_matches('.');
        if known(name).is_some() && major(name).is_some() && !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// The CUDA release that has every one of these libraries: the preferred one if it does, else the oldest that does.
pub(crate) fn common_cuda(names: &[&str], preferred: Option<u32>) -> Option<u32> {
    let has = |cuda: &u32| names.iter().all(|name| belongs(name, *cuda));
    preferred.filter(has).or_else(|| (10..=13).find(has))
}

/// Whether a CUDA release has a library of this major version.
fn belongs(name: &str, cuda: u32) -> bool {
    let Some(number) = major(name) else { return true };
    match (known(name), number) {
        (Some("cublas" | "cuda-runtime" | "cuda-nvrtc" | "nvjitlink" | "cuda-cupti"), _) => {
            cuda == number
        }
        (Some("cufft"), _) => cuda == number + 1,
        (Some("cusolver"), 11) => cuda == 11 || cuda == 12,
        (Some("cusolver"), 12) => cuda == 13,
        (Some("cusparse"), 12) => cuda == 12 || cuda == 13,
        (Some("cusolver" | "cusparse"), _) => cuda == number,
        (Some("cudnn"), 8) => cuda == 11 || cuda == 12,
        (Some("cudnn"), 9) => cuda >= 12,
        _ => true,
    }
}

/// The distribution of a library for a CUDA release. From CUDA 13 on, only packages with version numbers other than
/// CUDA's keep the `-cuNN` suffix.
pub(crate) fn distribution(package: &str, cuda: u32) -> String {
    match (package, cuda) {
        ("cudnn" | "nccl" | "cusparselt" | "nvshmem", _) | (_, ..=12) => {
            format!("nvidia-{package}-cu{cuda}")
        }
        _ => format!("nvidia-{package}"),
    }
}

/// A shell's words for the folder with a package's libraries in site-packages: `nvidia/cudnn/lib`, from CUDA 13 on
/// `nvidia/cu13/lib`.
pub(crate) fn wheel_folder(python: &str, package: &str, cuda: u32) -> String {
    let own = matches!(package, "cudnn" | "nccl" | "cusparselt" | "nvshmem");
    let folder = if own || cuda < 13 { package.replace('-', "_") } else { format!("cu{cuda}") };
    format!("$({python} -c 'import nvidia.{folder} as it; print(list(it.__path__)[0])')/lib")
}

/// The major version in a library's name: 12 of `libcudart.so.12`, 11 of `libcudart.so.11.0`.
pub(crate) fn major(name: &str) -> Option<u32> {
    name.split_once(".so.")?.1.split('.').next()?.parse().ok()
}

/// The CUDA release of a library, from the major version in its name. Some libraries use CUDA's major version, some are
/// one lower.
pub(crate) fn cuda_of_library(name: &str) -> Option<u32> {
    let number = major(name)?;
    match known(name)? {
        "cublas" | "cuda-runtime" | "cuda-nvrtc" | "nvjitlink" | "cuda-cupti" => Some(number),
        "cufft" | "cusolver" => Some(number + 1),
        _ => None,
    }
}

/// A package with those of its extras that install NVIDIA's libraries: `onnxruntime-gpu[cuda,cudnn]==1.31.1`.
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

/// Whether a file belongs to torch or to an NVIDIA package, needs torch's libraries, or its package requires torch.
pub(crate) fn is_for_torch(native: &Native<'_>) -> bool {
    let library = |name: &str| name.starts_with("libtorch") || name.starts_with("libc10");
    let requires = |line: &String| requirement::parse(line).is_some_and(|it| it.name == "torch");
    native.is_torch()
        || native.is_nvidia()
        || native.elf.needed.iter().any(|needed| library(&needed.name))
        || native.owner().is_some_and(|dist| dist.requires.iter().any(requires))
}

/// Whether the library search path of a file includes NVIDIA's packages.
pub(crate) fn looks_into_packages(native: &Native<'_>) -> bool {
    native.elf.search.iter().any(|folder| folder.contains("nvidia"))
}

/// Whether torch preloads a library: its path is `nvidia/<package>/lib` in a site-packages folder.
pub(crate) fn is_preloaded(path: &str) -> bool {
    let mut parts = path.rsplit('/').skip(1);
    parts.next() == Some("lib") && parts.nth(1) == Some("nvidia")
}
