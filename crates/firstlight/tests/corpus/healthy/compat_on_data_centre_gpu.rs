//! CUDA 13 by NVIDIA's compatibility libcuda on an H100, which takes it; spoilt by the card being a GeForce.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "compat_on_data_centre_gpu",
    rule: "forward-compatibility",
    found: Detection::Files(Severity::Error, "/usr/local/cuda-13.0/compat/libcuda.so.580.65.06"),
    build: |twin| {
        let (name, capability) =
            twin.pick(("NVIDIA GeForce RTX 4090", "8.9"), ("NVIDIA H100 80GB HBM3", "9.0"));
        World::with_gpu(name, capability, "570.148.08", "13.0")
            .torch("2.9.1+cu130", &[], &["sm_80", "sm_86", "sm_90"])
            .file("usr/local/cuda-13.0/compat/libcuda.so.580.65.06", "")
            .link("usr/local/cuda-13.0/compat/libcuda.so.1", "libcuda.so.580.65.06")
            .var("LD_LIBRARY_PATH", "/usr/local/cuda-13.0/compat")
    },
    ..BLANK
};
