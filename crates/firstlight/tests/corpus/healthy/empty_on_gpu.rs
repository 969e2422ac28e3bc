//! An environment with nothing in it beside a GPU: no torch is not a torch without CUDA.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "empty_on_gpu",
    rule: "cpu-only-torch",
    found: Detection::Files(Severity::Error, "torch/version.py"),
    build: |twin| {
        twin.broken(World::on("h200").python("3.13").uv(), |world| {
            world.torch("2.9.1+cpu", &[], &[])
        })
    },
    ..BLANK
};
