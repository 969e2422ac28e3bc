//! The CUDA wheels for server Arm on a GH200; spoilt by one extension for x86-64 among them.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::rows::kernels;
use crate::world::World;
use facts::Severity;

const FOREIGN: &str = "causal_conv1d_cuda.cpython-312-x86_64-linux-gnu.so";

pub(super) const PAIR: Pair = Pair {
    name: "gh200_arm_wheels",
    rule: "wrong-architecture",
    found: Detection::Files(Severity::Error, FOREIGN),
    build: |twin| {
        let world = World::on("gh200").uv().torch(
            "2.11.0+cu128",
            &[],
            &["sm_80", "sm_90", "sm_100", "sm_120"],
        );
        let world = kernels(world, "flash_attn", "2.8.3", "flash_attn_2_cuda", &["sm_80", "sm_90"]);
        let conv = Library::new().code(&["sm_90"]);
        match twin.pick(true, false) {
            true => world
                .dist("causal_conv1d", "1.5.3.post1", &[FOREIGN])
                .foreign_library(FOREIGN, &conv, "x86_64"),
            false => {
                kernels(world, "causal_conv1d", "1.5.3.post1", "causal_conv1d_cuda", &["sm_90"])
            }
        }
    },
    ..BLANK
};
