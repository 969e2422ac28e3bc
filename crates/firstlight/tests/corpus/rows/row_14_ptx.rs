//! Row 14: vLLM with PTX of CUDA 12.8 alone on a driver of CUDA 12.4, and the same with machine code beside it.

use super::kernels;
use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_14_ptx",
    rule: "ptx-newer-than-driver",
    found: Detection::Files(Severity::Error, "vllm/_C"),
    says: "the provided PTX was compiled with an unsupported toolchain.",
    build: |twin| {
        let world =
            World::on("rtx4090").torch("2.9.1+cu128", &[], &["sm_75", "sm_80", "sm_86", "sm_90"]);
        let images: &[&str] = twin.pick(&["compute_80 8.7"], &["compute_80 8.7", "sm_80"]);
        kernels(world, "vllm", "0.12.0", "vllm/_C", images)
    },
    ..BLANK
};
