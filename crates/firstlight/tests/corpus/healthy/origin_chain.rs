//! A library that finds its own by the RPATH of the extension that loads it, and serves the extension what it calls; spoilt
//! by one that has not what it calls.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

const OPS: &str = "chain/_C.abi3.so";
const SYMBOL: &str = "_ZN2at6detail5chainEv";

pub(super) const PAIR: Pair = Pair {
    name: "origin_chain",
    rule: "extension-other-torch",
    found: Detection::Files(Severity::Error, OPS),
    says: "undefined symbol: _ZN2at6detail5chainEv",
    opens: &[OPS],
    build: |twin| {
        let last = |symbol: &str| Library::named("libtorch_chain_last.so").exports(&[symbol]);
        // It has no path of its own: what it needs is found where the extension looks, and nowhere else.
        let middle = Library::named("libtorch_chain.so").linked_with(&last(SYMBOL));
        let first = Library::new()
            .linked_with(&middle)
            .wants(&[SYMBOL])
            .search("RPATH ${ORIGIN}/lib:$ORIGIN/../deep/./lib");
        World::on("a10")
            .torch("2.9.1+cu128", &[], &["sm_80", "sm_86"])
            .dist("chain", "1.0", &[OPS])
            .library(OPS, &first)
            .library("chain/lib/libtorch_chain.so", &middle)
            .library(
                "deep/lib/libtorch_chain_last.so",
                &last(twin.pick("_ZN2at6detail5otherEv", SYMBOL)),
            )
    },
    ..BLANK
};
