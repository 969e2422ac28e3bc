//! An extension beside a newer libcudart of the same major version than it was built with, which serves it; spoilt by an
//! older one, which lacks what it calls.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

const CUDART: &str = "nvidia/cuda_runtime/lib/libcudart.so.12";
const GEMM: &str = "deep_gemm_cpp.abi3.so";

pub(super) const PAIR: Pair = Pair {
    name: "newer_cudart",
    rule: "cuda-library-too-old",
    found: Detection::Files(Severity::Error, CUDART),
    says: "undefined symbol: cudaLibraryGetKernel, version libcudart.so.12",
    opens: &[GEMM],
    build: |twin| {
        let cudart = |symbols: &[&str]| Library::named("libcudart.so.12").exports(symbols);
        let (malloc, get) = ("cudaMalloc@libcudart.so.12", "cudaLibraryGetKernel@libcudart.so.12");
        let newest = cudart(&[malloc, get, "cudaLogsCurrent@libcudart.so.12"]);
        let gemm = Library::new()
            .linked_with(&cudart(&[malloc, get]))
            .wants(&["cudaLibraryGetKernel"])
            .search("RUNPATH $ORIGIN/nvidia/cuda_runtime/lib");
        World::on("h200")
            .uv()
            .torch("2.7.1+cu126", &[], &["sm_80", "sm_90"])
            .dist("deep_gemm", "2.0.0", &[GEMM])
            .library(GEMM, &gemm)
            .dist("nvidia_cuda_runtime_cu12", "12.6.77", &[CUDART])
            .library(CUDART, twin.pick(&cudart(&[malloc]), &newest))
    },
    ..BLANK
};
