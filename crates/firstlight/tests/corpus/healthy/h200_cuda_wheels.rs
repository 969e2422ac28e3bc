//! PyPI's torch on an H200 with all its CUDA packages, found by RUNPATH; spoilt by leaving cuBLAS out.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

const CUBLAS: &str = "nvidia/cublas/lib/libcublas.so.12";

pub(super) const PAIR: Pair = Pair {
    name: "h200_cuda_wheels",
    rule: "missing-cuda-library",
    found: Detection::Files(Severity::Error, "torch/lib/libtorch_cuda_linalg.so"),
    says: "libcublas.so.12: cannot open shared object file",
    opens: &["torch/lib/libtorch_cuda_linalg.so"],
    build: |twin| {
        let blas = Library::named("libcublas.so.12").exports(&["cublasCreate_v2"]);
        let cudnn = Library::named("libcudnn.so.9").exports(&["cudnnCreate"]);
        let linalg = Library::named("libtorch_cuda_linalg.so")
            .linked_with(&blas)
            .linked_with(&cudnn)
            .wants(&["cublasCreate_v2", "cudnnCreate"])
            .search(
                "RUNPATH $ORIGIN/../../nvidia/cublas/lib:$ORIGIN/../../nvidia/cudnn/lib:$ORIGIN",
            );
        let world = World::on("h200")
            .uv()
            .torch("2.9.1+cu128", &[], &["sm_80", "sm_90", "sm_100", "sm_120"])
            // torch's own record has to name the library for it to be torch's.
            .dist(
                "torch",
                "2.9.1",
                &[
                    "torch/lib/libtorch_cuda_linalg.so",
                    "torch/lib/libtorch_cuda.so",
                    "torch/lib/libc10.so",
                ],
            )
            .library("torch/lib/libtorch_cuda_linalg.so", &linalg)
            .dist("nvidia_cudnn_cu12", "9.10.2.21", &["nvidia/cudnn/lib/libcudnn.so.9"])
            .library("nvidia/cudnn/lib/libcudnn.so.9", &cudnn);
        match twin.pick(true, false) {
            true => world,
            false => world.dist("nvidia_cublas_cu12", "12.8.4.1", &[CUBLAS]).library(CUBLAS, &blas),
        }
    },
    ..BLANK
};
