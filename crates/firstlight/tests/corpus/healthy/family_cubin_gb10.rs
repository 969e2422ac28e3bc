//! Code for the family of 12.0 on a GB10 (12.1), whose torch warns of the capability; spoilt by code for 12.0 exactly.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::rows::kernels;
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "family_cubin_gb10",
    rule: "no-kernel-image",
    found: Detection::Files(Severity::Error, "sageattention"),
    build: |twin| {
        let world = World::on("gb10").uv().torch(
            "2.10.0+cu130",
            &[],
            &["sm_80", "sm_90", "sm_100", "sm_110", "sm_120"],
        );
        kernels(
            world,
            "sageattention",
            "2.2.0",
            "sageattention/_qattn",
            &[twin.pick("sm_120a", "sm_120f")],
        )
    },
    ..BLANK
};
