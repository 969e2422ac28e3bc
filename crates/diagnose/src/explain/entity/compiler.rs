//! Errors of nvcc and of host compilers: headers and members that another release of CUDA or of the C library has.

use super::{Entity, Form, form};
use crate::host;
use crate::rules::PastedError;
use knowledge::{Minor, Version, minor_of};

pub(super) fn forms() -> Vec<Form> {
    vec![
        form(
            "exception specification is incompatible with that of previous function '{function}'",
            exception,
        ),
        form(
            "exception specification in declaration does not match previous declaration",
            exception,
        ),
        form("declaration of '*' has a different exception specifier", exception),
        form("class '{class}' has no member '{member}'", member),
        form("struct {class}' has no member named '{member}'", member),
        form("'{class}' has no member named '{member}'", member),
        form("no member named '{member}' in '{class}'", member),
        form("namespace '{class}' has no member '{member}'", namespace),
        form("'{member}' is not a member of '{class}'", namespace),
        form("identifier '{name}' is undefined", identifier),
        form("'{name}' was not declared in this scope", identifier),
        form("use of undeclared identifier '{name}'", identifier),
        form("no suitable constructor exists to convert from 'int' to 'cudaMemLocation'", location),
        form(
            "argument of type 'int' is incompatible with parameter of type 'cudaMemLocation'",
            location,
        ),
        form("fatal error: {header}: No such file or directory", header),
        form("fatal error: '{header}' file not found", header),
        form("cannot open source file '{header}'", header),
        form("Unsupported gpu architecture 'compute_{arch}", no_architecture),
        form("#error C++{standard} or later compatible compiler is required", standard),
        form("You need C++{standard} to compile PyTorch", standard),
        form("You need C++{standard}", standard),
    ]
}

/// Math functions that glibc declares `noexcept` and CUDA's headers declare without, the glibc release that added them,
/// and the first CUDA release whose headers agree. Read on 2026-11-28: crt/math_functions.h of CUDA 12.9, 13.0, 13.1 and 13.2 in PyPI's
/// wheels of nvidia-cuda-nvcc-cu12 and nvidia-cuda-crt; for glibc's releases github.com/opencv/opencv/issues/27111 (2.41) and
/// github.com/llvm/llvm-project/pull/185701 (2.42).
const MATH: [(&str, Minor, Minor); 3] =
    [("cospi", (2, 41), (13, 0)), ("sinpi", (2, 41), (13, 0)), ("rsqrt", (2, 42), (13, 2))];

fn exception(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let function = match seen.word("function") {
        Some(word) => word.to_owned(),
        None => MATH.iter().find(|(name, ..)| seen.text.contains(name))?.0.to_owned(),
    };
    let base = function.trim_end_matches(['f', 'l']);
    let row = MATH.iter().find(|(name, ..)| *name == base || *name == function);
    let system =
        seen.text.contains("mathcalls") || seen.text.contains("math_functions") || row.is_some();
    system.then_some(())?;
    let (libc, cuda) = row.map_or(((2, 41), (13, 0)), |(_, libc, cuda)| (*libc, *cuda));
    let (libc, cuda) = (knowledge::dotted(libc), knowledge::dotted(cuda));
    let machine = seen.machine();
    let mut entity = Entity::new("compiler", format!("{function} (mathcalls.h and CUDA's math_functions.h)"))
        .meaning(format!(
            "glibc {libc} and newer declare {function} with noexcept, and the headers of CUDA before {cuda} declare it without: the host's C \
             library is newer than the CUDA toolkit supports. Use CUDA {cuda} or newer, or build in a container image with an older C library \
             (for example Ubuntu 24.04, glibc 2.39); patching the toolkit's crt/math_functions.h works as well."
        ))
        .fix([
            format!("# a toolkit of CUDA {cuda} or newer; or build in an older image:"),
            "docker run --rm -it -v \"$PWD\":/src nvidia/cuda:12.8.1-devel-ubuntu24.04".to_owned(),
        ])
        .rank(4);
    if let Some(fact) = &machine.os.libc {
        entity = entity.evidence(fact.value.clone(), fact.source.clone());
        let here = fact.value.split_whitespace().last().and_then(Version::parse).map(|v| v.minor());
        let newer = here.zip(minor_of(&libc)).map(|(here, least)| here >= least);
        let toolkits: Vec<Minor> = machine
            .toolkits
            .iter()
            .filter_map(|toolkit| minor_of(&toolkit.version.as_ref()?.value))
            .collect();
        let old =
            toolkits.iter().any(|toolkit| minor_of(&cuda).is_some_and(|least| *toolkit < least));
        entity.confirmed_here = newer.map(|newer| newer && (old || toolkits.is_empty()));
    }
    for toolkit in &machine.toolkits {
        if let Some(version) = &toolkit.version {
            entity =
                entity.evidence(format!("CUDA toolkit {}", version.value), toolkit.root.clone());
        }
    }
    Some(entity)
}

/// Members of cudaDeviceProp that CUDA 13 removed: driver_types.h of CUDA 12.4 has them and that of 13.0 does not, in
/// PyPI's wheels of nvidia-cuda-runtime, read on 2026-11-28. cudaDeviceGetAttribute of 13.0 still has each except
/// cooperativeMultiDeviceLaunch, whose function was removed as well. CUDA 11 removed members of cudaPointerAttributes:
/// github.com/ROCm/hip/issues/2145.
const REMOVED: [&str; 8] = [
    "clockRate",
    "computeMode",
    "cooperativeMultiDeviceLaunch",
    "deviceOverlap",
    "kernelExecTimeoutEnabled",
    "maxTexture1DLinear",
    "memoryClockRate",
    "singleToDoublePrecisionPerfRatio",
];

fn member(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let (class, member) = (seen.word("class")?, seen.word("member")?);
    let class = class.trim_start_matches("struct").trim_start_matches("const").trim();
    let properties = ["cudaDeviceProp", "cudaPointerAttributes", "hipDeviceProp_t"];
    if class.starts_with("at::") || class.starts_with("c10::") || class.starts_with("torch::") {
        return Some(of_torch(seen, &format!("{class}::{member}")));
    }
    let known = properties.iter().find(|name| class.contains(*name))?;
    let removed = REMOVED.contains(&member);
    let pointer = *known == "cudaPointerAttributes";
    let since = if pointer { "11" } else { "13" };
    let certainty = match removed || pointer {
        true => format!("CUDA {since} removed this field"),
        false => format!("this CUDA release does not have the field; CUDA {since} removed several"),
    };
    Some(with_toolkits(
        seen,
        Entity::new("compiler", format!("{known}.{member}"))
            .meaning(format!(
                "The source reads {known}.{member}, and {certainty}: it was written for an older CUDA release. Take a newer release of the source, or build \
                 with CUDA {}.{}",
                if pointer { "10" } else { "12" },
                if removed && member != "cooperativeMultiDeviceLaunch" {
                    " In your own source, cudaDeviceGetAttribute has the same value."
                } else {
                    ""
                }
            ))
            .fix(["# a newer release of the source; or a toolkit of CUDA 12:"])
            .fix(host::use_toolkit(seen.machine(), (12, 8)))
            .rank(4),
    ))
}

fn with_toolkits(seen: &PastedError, mut entity: Entity) -> Entity {
    for toolkit in &seen.machine().toolkits {
        if let Some(version) = &toolkit.version {
            entity =
                entity.evidence(format!("CUDA toolkit {}", version.value), toolkit.root.clone());
        }
    }
    entity
}

/// A name that other releases of torch's C++ API have.
fn of_torch(seen: &PastedError, name: &str) -> Entity {
    let mut entity = Entity::new("compiler", name)
        .meaning(format!(
            "The extension's source uses {name}, which the headers of the installed torch do not have: source and torch do not fit together. \
             Take the release of the extension that supports this torch, or the torch that it names in its requirements."
        ))
        .fix([format!("{} -c 'import torch; print(torch.__version__)'", seen.installer().python())])
        .package("torch")
        .rank(3);
    if let Some(torch) = seen.env().and_then(|env| env.torch.as_ref()) {
        entity = entity.evidence(format!("torch {}", torch.version), torch.source.clone());
    }
    entity
}

/// Namespaces of libraries in the CUDA toolkit, whose names change between its releases.
const TOOLKIT_NAMESPACES: [&str; 6] =
    ["cub", "thrust", "cuda", "cooperative_groups", "cg", "nvcuda"];

fn namespace(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let (space, member) = (seen.word("class")?, seen.word("member")?);
    let top = space.split("::").next().unwrap_or(space);
    if ["at", "c10", "torch"].contains(&top) {
        return Some(of_torch(seen, &format!("{space}::{member}")));
    }
    TOOLKIT_NAMESPACES.contains(&top).then_some(())?;
    Some(with_toolkits(
        seen,
        Entity::new("compiler", format!("{space}::{member}"))
            .meaning(format!(
                "{space}::{member} is not in the CCCL headers (Thrust, CUB, libcu++) of this CUDA toolkit: CUDA 13 brings CCCL 3, which removed names \
                 that CUDA 12 had, and older toolkits lack newer ones. Take a newer release of the source, or the CUDA release it was written for."
            ))
            .fix(["# a newer release of the source; or a toolkit of CUDA 12:"])
            .fix(host::use_toolkit(seen.machine(), (12, 8)))
            .rank(3),
    ))
}

/// Prefixes of names that the headers of CUDA define.
const CUDA_NAMES: [&str; 12] = [
    "cuda",
    "CUDA_",
    "CUDART_",
    "cublas",
    "CUBLAS_",
    "cudnn",
    "CUDNN_",
    "cusparse",
    "CUSPARSE_",
    "nvrtc",
    "nvtx",
    "__nv_",
];

fn identifier(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let name = seen.word("name")?;
    CUDA_NAMES.iter().any(|prefix| name.starts_with(prefix)).then_some(())?;
    Some(with_toolkits(
        seen,
        Entity::new("compiler", name)
            .meaning(format!(
                "{name} is not in the headers of this CUDA release: the source was written for another one, older (the name was removed) or newer (it is \
                 not there yet)."
            ))
            .fix(["nvcc --version", "# take the release of the source that names this CUDA release, or another toolkit"])
            .rank(3),
    ))
}

fn location(seen: &PastedError, _: &'static str) -> Option<Entity> {
    Some(with_toolkits(
        seen,
        Entity::new("compiler", "cudaMemLocation")
            .meaning(
                "CUDA 13 changed cudaMemPrefetchAsync and cudaMemAdvise: they take a cudaMemLocation instead of a device number. The source was written \
                 for CUDA 12: take a newer release of it, or build with CUDA 12.",
            )
            .fix(["# a newer release of the source; or a toolkit of CUDA 12:"])
            .fix(host::use_toolkit(seen.machine(), (12, 8)))
            .rank(4),
    ))
}

/// Headers by folder or name, and what has them: a system package on Debian and Red Hat, or words. Read on 2026-11-28: Debian 12's
/// package contents (apt-file) for MPI, RDMA, libnuma and libaio; NVIDIA's CCCL 3.0 migration guide for include/cccl; the headers of
/// CUDA 12.4 and 13.0 in PyPI's wheels of nvidia-cuda-runtime for the texture headers. NVIDIA's packages
/// of cuDNN, NCCL and TensorRT and Red Hat's rdma-core-devel and numactl-devel are in install commands of public files; openmpi-devel and
/// libaio-devel, and which toolkit has the other headers, were not read.
const HEADERS: [(&str, &str, &str, &str); 22] = [
    ("cudnn", "cuDNN", "libcudnn9-dev-cuda-13", "libcudnn9-devel-cuda-13"),
    ("nccl", "NCCL", "libnccl-dev", "libnccl-devel"),
    ("cusolver", "the CUDA toolkit", "", ""),
    ("cusparse", "the CUDA toolkit", "", ""),
    ("cublas", "the CUDA toolkit", "", ""),
    ("cufft", "the CUDA toolkit", "", ""),
    ("curand", "the CUDA toolkit", "", ""),
    ("nvrtc", "the CUDA toolkit", "", ""),
    ("nvToolsExt", "CUDA 12 (CUDA 13 has NVTX 3 alone: nvtx3/nvToolsExt.h)", "", ""),
    ("nvtx3", "the CUDA toolkit", "", ""),
    ("cuda", "the CUDA toolkit", "", ""),
    ("thrust", "the CUDA toolkit (in CUDA 13 under include/cccl)", "", ""),
    ("cub", "the CUDA toolkit (in CUDA 13 under include/cccl)", "", ""),
    ("nv/target", "the CUDA toolkit (in CUDA 13 under include/cccl)", "", ""),
    ("texture_fetch_functions.h", "CUDA 12 (CUDA 13 removed it)", "", ""),
    ("cuda_texture_types.h", "CUDA 12 (CUDA 13 removed it)", "", ""),
    ("mpi.h", "MPI", "libopenmpi-dev", "openmpi-devel"),
    ("infiniband", "the RDMA libraries", "libibverbs-dev", "rdma-core-devel"),
    ("numa.h", "libnuma", "libnuma-dev", "numactl-devel"),
    ("libaio.h", "libaio (DeepSpeed's async I/O)", "libaio-dev", "libaio-devel"),
    ("NvInfer", "TensorRT", "libnvinfer-dev", "libnvinfer-devel"),
    ("ATen", "torch", "", ""),
];

fn header(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let header = seen.word("header")?;
    let named = |name: &str| header.starts_with(name);
    let (_, owner, debian, red_hat) = HEADERS.iter().find(|(name, ..)| named(name))?;
    let machine = seen.machine();
    let fix = match (*owner, debian.is_empty()) {
        ("torch", _) => vec![
            "# torch's own headers are in torch/include: build with torch.utils.cpp_extension"
                .to_owned(),
        ],
        (_, true) => host::use_toolkit(machine, (12, 8)),
        _ => vec![host::install_package(machine, debian, red_hat)],
    };
    Some(with_toolkits(
        seen,
        Entity::new("compiler", header)
            .meaning(format!(
                "The compiler does not find {header}, a header of {owner}. The runtime packages from PyPI do not make it visible to a build; install it \
                 where the build looks, or name its folder in CPATH."
            ))
            .fix(fix)
            .rank(2),
    ))
}

/// nvcc got words or nothing instead of an architecture's number.
fn no_architecture(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let arch = seen.word("arch")?.trim_matches('\'');
    let number = arch.starts_with(|c: char| c.is_ascii_digit());
    (!number && !["native", "all", "all-major"].contains(&arch)).then_some(())?;
    let what = match arch.is_empty() {
        true => "nothing".to_owned(),
        false => format!("words (`{arch}`)"),
    };
    Some(
        Entity::new("compiler", format!("architecture compute_{arch}"))
            .meaning(format!(
                "nvcc got {what} instead of the architecture's number: the build asked for this machine's GPU (`native`) and saw none, as in `docker build`, on a login node or \
                 without a driver. Name the architecture."
            ))
            .fix([
                "cmake -B build -DCMAKE_CUDA_ARCHITECTURES=86 ...  # the compute capability without its dot; delete the old build folder first",
                "export TORCH_CUDA_ARCH_LIST=8.6  # extensions of PyTorch",
                "nvidia-smi --query-gpu=name,compute_cap --format=csv  # on the machine with the GPU",
            ])
            .excludes(&["nvcc-architecture"])
            .rank(5),
    )
}

fn standard(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let standard = seen.word("standard")?;
    Some(
        Entity::new("compiler", format!("C++{standard}"))
            .meaning(format!(
                "The headers of the installed torch need C++{standard}, and the extension's build asks for an older standard or the compiler is older. Take a \
                 newer release of the extension, or change -std in its setup; GCC 9 has C++17, GCC 11 C++20."
            ))
            .fix(["c++ --version", "nvcc --version"])
            .package("torch")
            .rank(3),
    )
}
