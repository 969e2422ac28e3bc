//! Code for the family of 10.0 on a B300 (10.3), which is of it; spoilt by code for 10.0 exactly.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::rows::kernels;
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "family_cubin_b300",
    rule: "no-kernel-image",
    found: Detection::Files(Severity::Error, "flash_mla"),
    build: |twin| {
        let world = World::with_gpu("NVIDIA B300 SXM6 AC", "10.3", "580.95.05", "13.0").torch(
            "2.9.1+cu130",
            &[],
            &["sm_80", "sm_90", "sm_100", "sm_120"],
        );
        kernels(
            world,
            "flash_mla",
            "1.0.0",
            "flash_mla/cuda",
            &["sm_90a", twin.pick("sm_100a", "sm_100f")],
        )
    },
    ..BLANK
};
