//! An extension that is whole; spoilt by a copy that stopped after the first bytes.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

const OPS: &str = "own_ops/_C.abi3.so";

pub(super) const PAIR: Pair = Pair {
    name: "whole_library",
    rule: "damaged-files",
    found: Detection::Files(Severity::Error, OPS),
    says: "",
    opens: &[OPS],
    build: |twin| {
        let world = World::on("a10").dist("own_ops", "1.0", &[OPS]);
        match twin.pick(true, false) {
            true => world.in_site(OPS, "\u{7f}ELF\u{2}\u{1}"),
            false => world.library(OPS, &Library::new()),
        }
    },
    ..BLANK
};
