//! Row 6 for C++: conda's libstdc++ lies in front of the system's by LD_LIBRARY_PATH and is older than flash-attn asks for.

use super::{FLASH, OLD, TORCH, linked_with};
use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_06_libstdcxx",
    rule: "libstdcxx-too-old",
    found: Detection::Files(Severity::Error, FLASH),
    says: "version `GLIBCXX_3.4.99' not found",
    opens: &[TORCH, FLASH],
    build: |twin| {
        let cxx = |exports: &[&str]| Library::named("libstdc++.so.6").exports(exports);
        let old = cxx(&["older@GLIBCXX_3.4.30"]);
        let new = cxx(&["older@GLIBCXX_3.4.30", "newer@GLIBCXX_3.4.99"]);
        let world = World::on("a10")
            .torch("2.6.0+cu124", &[OLD], &[])
            .library_at("opt/old/libstdc++.so.6", twin.pick(&old, &new))
            .var("LD_LIBRARY_PATH", "~/opt/old");
        linked_with(world, &new, "newer")
    },
    ..BLANK
};
