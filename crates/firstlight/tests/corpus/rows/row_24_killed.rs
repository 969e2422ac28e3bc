//! Row 24: a build killed in a container with too little memory for its parallel jobs, and one with enough.

use crate::judge::{PAIR as BLANK, Pair};
use crate::world::World;

pub(super) const PAIR: Pair = Pair {
    name: "row_24_killed",
    rule: "build-out-of-memory",
    message: "ninja: build stopped: subcommand failed.\nnvcc error   : 'cicc' died due to signal 9 (Kill signal)",
    build: |twin| {
        World::on("x86-cpu")
            .file("sys/fs/cgroup/memory.max", twin.pick("8589934592\n", "34359738368\n"))
    },
    ..BLANK
};
