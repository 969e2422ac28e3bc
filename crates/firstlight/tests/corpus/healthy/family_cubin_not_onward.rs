//! Code for the family of 12.0 beside plain code for 8.0 on an A10: an image that does not fit is none, and one that does
//! is enough; spoilt by taking that one out.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::rows::kernels;
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "family_cubin_not_onward",
    rule: "no-kernel-image",
    found: Detection::Files(Severity::Error, "xformers/_C"),
    build: |twin| {
        let world = World::on("a10").python("3.10").torch("2.9.1+cu128", &[], &["sm_80", "sm_86"]);
        let images: &[&str] = twin.pick(&["sm_90a", "sm_120f"], &["sm_80", "sm_90a", "sm_120f"]);
        kernels(world, "xformers", "0.0.33", "xformers/_C", images)
    },
    ..BLANK
};
