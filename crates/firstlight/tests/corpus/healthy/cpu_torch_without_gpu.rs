//! The CPU build of torch on a machine without a GPU; spoilt by an A10.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "cpu_torch_without_gpu",
    rule: "cpu-only-torch",
    found: Detection::Files(Severity::Error, "NVIDIA A10"),
    build: |twin| {
        World::on(twin.pick("a10", "x86-cpu")).python("3.11").torch("2.9.1+cpu", &[], &[])
    },
    ..BLANK
};
