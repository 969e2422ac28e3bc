//! Row 6: flash-attn compiled on a newer distribution than Ubuntu 22.04, whose C library ends at 2.35.

use super::{FLASH, OLD, TORCH, linked_with};
use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_06_glibc",
    rule: "glibc-too-old",
    found: Detection::Files(Severity::Error, FLASH),
    says: "version `GLIBC_2.99' not found (required by",
    opens: &[TORCH, FLASH],
    build: |twin| {
        let libc = |exports: &[&str]| {
            let banner =
                "GNU C Library (Ubuntu GLIBC 2.35-0ubuntu3.8) stable release version 2.35.\n";
            Library::named("libc.so.6").exports(exports).text(banner)
        };
        let here = libc(&["clock_gettime@GLIBC_2.17", "epoll_pwait2@GLIBC_2.35"]);
        // Both names and versions are in every glibc since 2.17, so the loader here can agree.
        let wanted = twin.pick("newer@GLIBC_2.99", "clock_gettime@GLIBC_2.17");
        let world = World::on("a10").system("libc.so.6", &here).torch("2.6.0+cu124", &[OLD], &[]);
        linked_with(world, &libc(&[wanted]), wanted.split('@').next().unwrap_or_default())
    },
    ..BLANK
};
