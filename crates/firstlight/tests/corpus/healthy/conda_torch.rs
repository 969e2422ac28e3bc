//! conda-forge's torch, whose version has no label and which PyTorch's table of builds says nothing about, on a V100;
//! spoilt by the code it would have on PyPI.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "conda_torch",
    rule: "gpu-too-old",
    found: Detection::Files(Severity::Error, "torch/lib/libtorch_cuda.so"),
    build: |twin| {
        let images: &[&str] = twin.pick(
            &["sm_75", "sm_80", "sm_90", "sm_120"],
            &["sm_50", "sm_70", "sm_80", "compute_120 9.0"],
        );
        World::with_gpu("Tesla V100-SXM2-32GB", "7.0", "570.148.08", "12.8")
            .python("3.11")
            .conda()
            .dist("torch", "2.12.0", &["torch/lib/libtorch_cuda.so"])
            .in_site("torch/version.py", "__version__ = '2.12.0'\ncuda: Optional[str] = '12.9'\n")
            .library("torch/lib/libtorch_cuda.so", &Library::named("libtorch_cuda.so").code(images))
    },
    ..BLANK
};
