//! PTX for 9.0 on an RTX 5090 (12.0), which its driver compiles; spoilt by PTX with an `a`, which serves 9.0 alone.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::rows::kernels;
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "ptx_for_newer_gpu",
    rule: "no-kernel-image",
    found: Detection::Files(Severity::Error, "flashinfer"),
    build: |twin| {
        let world = World::with_gpu("NVIDIA GeForce RTX 5090", "12.0", "575.57.08", "12.9")
            .python("3.11")
            .torch("2.9.1+cu128", &[], &["sm_80", "sm_90", "sm_100", "sm_120"]);
        kernels(
            world,
            "flashinfer_python",
            "0.5.2",
            "flashinfer/_kernels",
            &["sm_90a", twin.pick("compute_90a 8.4", "compute_90 8.4")],
        )
    },
    ..BLANK
};
