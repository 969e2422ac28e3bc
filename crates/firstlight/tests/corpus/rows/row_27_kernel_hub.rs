//! Row 27: a kernel of the hub without a variant for the installed torch, and with one.

use crate::judge::{PAIR as BLANK, Pair};
use crate::world::World;

pub(super) const PAIR: Pair = Pair {
    name: "row_27_kernel_hub",
    rule: "kernel-hub-variant",
    message: "FileNotFoundError: Cannot find a build variant for this system in kernels-community/flash-attn (revision: \
           main). Available variants: torch27-cxx11-cu126-x86_64-linux, torch28-cxx11-cu128-x86_64-linux",
    build: |twin| {
        World::on("a10").torch(twin.pick("2.9.1+cu128", "2.8.0+cu128"), &[], &["sm_80", "sm_86"])
    },
    ..BLANK
};
