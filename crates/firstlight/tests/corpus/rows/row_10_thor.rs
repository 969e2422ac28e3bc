//! Row 10: a Jetson Thor beside a cu128 build, which has nothing for 11.0, and beside a cu130 build, which has.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_10_thor",
    rule: "gpu-too-new",
    found: Detection::Files(Severity::Error, "torch/lib/libtorch_cuda.so"),
    says: "NVIDIA Thor with CUDA capability sm_110 is not compatible with the current PyTorch installation",
    build: |twin| {
        let world = World::on("jetson-orin")
            .file("proc/device-tree/model", "NVIDIA Jetson AGX Thor Developer Kit\0")
            .gpu("NVIDIA Thor", "11.0")
            .driver("580.00", "13.0");
        match twin.pick(true, false) {
            true => world.torch("2.9.1+cu128", &[], &["sm_80", "sm_90", "sm_100", "sm_120"]),
            false => world.torch(
                "2.9.1+cu130",
                &[],
                &["sm_80", "sm_90", "sm_100", "sm_110", "sm_120", "compute_120 9.0"],
            ),
        }
    },
    ..BLANK
};
