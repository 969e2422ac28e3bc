//! Row 24: setup.py looked for the wheel of the installed torch, and for the wheel of another one.

use crate::judge::{PAIR as BLANK, Pair};
use crate::world::World;

pub(super) const PAIR: Pair = Pair {
    name: "row_24_no_wheel",
    rule: "no-prebuilt-wheel",
    message: "Guessing wheel URL:  https://github.com/Dao-AILab/flash-attention/releases/download/v2.8.3/flash_attn-2.8.3+cu12\
           torch2.10cxx11abiTRUE-cp312-cp312-linux_x86_64.whl\nPrecompiled wheel not found. Building from source...",
    build: |twin| {
        let version = twin.pick("2.10.0+cu128", "2.9.1+cu128");
        World::on("a10").torch(version, &[], &["sm_80", "sm_86"])
    },
    ..BLANK
};
