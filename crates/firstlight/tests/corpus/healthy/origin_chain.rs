//! An extension that needs a symbol of an indirect dependency, which the loader finds by the extension's RPATH. Broken twin: the
//! dependency lacks the symbol.

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
    message: "undefined symbol: _ZN2at6detail5chainEv",
    loads: &[OPS],
    build: |twin| {
        let last = |symbol: &str| Library::named("libtorch_chain_last.so").exports(&[symbol]);
        // It has no RPATH, so its dependency is found only by the RPATH of the extension.
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
