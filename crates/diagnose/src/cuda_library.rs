//! The names of CUDA's libraries: which of NVIDIA's packages brings each, and of which release it is.

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
