//! Row 22: a build that does not see the installed torch, and an environment without torch, where the message is correct.

use crate::judge::{PAIR as BLANK, Pair};
use crate::world::World;

pub(super) const PAIR: Pair = Pair {
    name: "row_22_build_isolation",
    rule: "build-isolation",
    message: "× Getting requirements to build wheel did not run successfully.\n  ModuleNotFoundError: No module named 'torch'",
    build: |twin| {
        twin.broken(World::on("a10"), |world| world.torch("2.9.1+cu128", &[], &["sm_80", "sm_86"]))
    },
    ..BLANK
};
