//! `lib64` is a link to `lib`, as venv makes it on some systems: nothing is there twice; spoilt by a second version.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::rows::kernels;
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "lib64_link",
    rule: "duplicate-dist",
    found: Detection::Files(Severity::Warning, "flash_attn-2.7.4.dist-info"),
    build: |twin| {
        let world = World::on("a10")
            .torch("2.9.1+cu128", &[], &["sm_80", "sm_86"])
            .link("home/user/venv/lib64", "lib");
        let world = kernels(world, "flash_attn", "2.8.3", "flash_attn_2_cuda", &["sm_80"]);
        twin.broken(world, |world| world.dist("flash_attn", "2.7.4", &[]))
    },
    ..BLANK
};
