//! Row 31: flash-attn on a T4, and on an A10.

use super::kernels;
use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_31_turing",
    rule: "flash-attention-needs-ampere",
    found: Detection::Files(Severity::Error, "flash_attn-2.8.3.dist-info"),
    says: "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
    also: &["no-kernel-image"],
    build: |twin| {
        let (name, capability) = twin.pick(("Tesla T4", "7.5"), ("NVIDIA A10", "8.6"));
        let world = World::with_gpu(name, capability, "570.148.08", "12.8").torch(
            "2.9.1+cu128",
            &[],
            &["sm_75", "sm_80", "sm_86"],
        );
        kernels(world, "flash_attn", "2.8.3", "flash_attn_2_cuda", &["sm_80", "sm_90"])
    },
    ..BLANK
};
