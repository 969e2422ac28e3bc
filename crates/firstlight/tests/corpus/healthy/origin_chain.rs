//! A library that finds its own by the RPATH of the extension that loads it; spoilt by taking the last of them away.

use crate::judge::{Found, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "origin_chain",
    rule: "missing-cuda-library",
    found: Found::Files(Severity::Warning, "chain/lib/libmiddle.so.1"),
    says: "libcufft.so.11: cannot open shared object file",
    opens: &["chain/_C.abi3.so"],
    build: |twin| {
        let last = Library::named("libcufft.so.11").exports(&["cufftPlan1d"]);
        let middle = Library::named("libmiddle.so.1")
            .linked_with(&last)
            .wants(&["cufftPlan1d"])
            .exports(&["middle"]);
        let first = Library::new()
            .linked_with(&middle)
            .wants(&["middle"])
            .search("RPATH ${ORIGIN}/lib:$ORIGIN/../deep/./lib");
        let world = World::on("a10")
            .dist("chain", "1.0", &["chain/_C.abi3.so", "chain/lib/libmiddle.so.1"])
            .library("chain/_C.abi3.so", &first)
            .library("chain/lib/libmiddle.so.1", &middle);
        if twin.pick(true, false) { world } else { world.library("deep/lib/libcufft.so.11", &last) }
    },
    ..BLANK
};
