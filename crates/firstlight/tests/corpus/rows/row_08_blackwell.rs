//! Row 8: an RTX 5090 beside a torch whose newest code is for Hopper.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_08_blackwell",
    rule: "gpu-too-new",
    found: Detection::Files(Severity::Error, "torch/lib/libtorch_cuda.so"),
    says: "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation",
    build: |twin| {
        let world = World::with_gpu("NVIDIA GeForce RTX 5090", "12.0", "575.57.08", "12.9");
        match twin.pick(true, false) {
            true => world.torch(
                "2.6.0+cu124",
                &[],
                &["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"],
            ),
            false => world.torch(
                "2.9.1+cu128",
                &[],
                &["sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"],
            ),
        }
    },
    ..BLANK
};
