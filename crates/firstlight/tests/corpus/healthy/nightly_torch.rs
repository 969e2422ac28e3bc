//! A nightly torch with the torchvision of the same night, whose numbers no table has; spoilt by both being releases.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "nightly_torch",
    rule: "torch-pairs",
    found: Detection::Files(Severity::Error, "torchvision-0.27.0"),
    build: |twin| {
        let (torch, vision) = twin.pick(
            ("2.9.1+cu128", "0.27.0"),
            ("2.13.0.dev20260601+cu128", "0.27.0.dev20260601+cu128"),
        );
        World::on("a10").torch(torch, &[], &["sm_80", "sm_86"]).dist("torchvision", vision, &[])
    },
    ..BLANK
};
