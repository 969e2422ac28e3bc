//! Row 24: a build without nvcc, and an environment where CUDA_HOME has a toolkit, so the message does not apply.

use crate::judge::{PAIR as BLANK, Pair};
use crate::world::World;

pub(super) const PAIR: Pair = Pair {
    name: "row_24_no_toolkit",
    rule: "cuda-home-not-set",
    message: "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
    build: |twin| {
        let world = World::on("rtx4090").torch("2.9.1+cu128", &[], &["sm_80", "sm_86"]);
        match twin.pick(true, false) {
            true => world,
            false => world.toolkit("opt/toolkit", "12.8.1").var("CUDA_HOME", "/opt/toolkit"),
        }
    },
    ..BLANK
};
