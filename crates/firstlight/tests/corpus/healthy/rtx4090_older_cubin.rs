//! Machine code for 8.0 alone on an RTX 4090 (8.9), which runs it; spoilt by code for 9.0 alone.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::rows::kernels;
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "rtx4090_older_cubin",
    rule: "no-kernel-image",
    found: Detection::Files(Severity::Error, "flash_attn_2_cuda"),
    build: |twin| {
        let world =
            World::on("rtx4090").torch("2.8.0+cu128", &[], &["sm_75", "sm_80", "sm_86", "sm_90"]);
        kernels(world, "flash_attn", "2.8.3", "flash_attn_2_cuda", &[twin.pick("sm_90", "sm_80")])
    },
    ..BLANK
};
