//! flash-attn on a machine with an A10 and an older T4 beside it: it has its use; spoilt by the T4 alone.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "flash_attention_beside_turing",
    rule: "flash-attention-needs-ampere",
    found: Detection::Files(Severity::Error, "flash_attn-2.8.3.dist-info"),
    build: |twin| {
        let world = World::with_gpu("Tesla T4", "7.5", "570.148.08", "12.8")
            .torch("2.9.1+cu128", &[], &["sm_75", "sm_80", "sm_86"])
            .dist("flash_attn", "2.8.3", &[]);
        if twin.pick(true, false) { world } else { world.second_gpu("NVIDIA A10", "8.6") }
    },
    ..BLANK
};
