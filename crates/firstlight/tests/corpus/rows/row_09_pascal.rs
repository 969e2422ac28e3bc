//! Row 9: a P100 beside a cu128 build, which begins at Volta, and beside a cu126 build, which has Pascal.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_09_pascal",
    rule: "gpu-too-old",
    found: Detection::Files(Severity::Error, "torch/lib/libtorch_cuda.so"),
    says: "PyTorch no longer supports this GPU because it is too old. The minimum cuda capability supported by this \
           library is 7.5.",
    build: |twin| {
        let world = World::with_gpu("Tesla P100-PCIE-16GB", "6.0", "570.148.08", "12.8");
        match twin.pick(true, false) {
            true => world.torch(
                "2.9.1+cu128",
                &[],
                &["sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"],
            ),
            false => world.torch(
                "2.9.1+cu126",
                &[],
                &["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"],
            ),
        }
    },
    ..BLANK
};
