//! Row 11: the wheel for Arm servers on a Jetson Orin, and NVIDIA's own wheel for it.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_11_orin",
    rule: "jetson-server-wheel",
    found: Detection::Files(Severity::Error, "torch/lib/libtorch_cuda.so"),
    says: "Orin with CUDA capability sm_87 is not compatible with the current PyTorch installation",
    build: |twin| {
        let world = World::on("jetson-orin").python("3.10");
        match twin.pick(true, false) {
            true => world.torch("2.9.1+cu126", &[], &["sm_80", "sm_90"]),
            false => world.torch("2.8.0+cu126", &[], &["sm_87"]),
        }
    },
    ..BLANK
};
