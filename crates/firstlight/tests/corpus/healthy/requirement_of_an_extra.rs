//! A requirement of an extra that nobody asked for, and one of another system, are none; spoilt by one that holds always.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "requirement_of_an_extra",
    rule: "dependency-conflict",
    found: Detection::Files(Severity::Warning, "datasets-4.0.0.dist-info"),
    build: |twin| {
        let wanted = twin.pick("requests>=2.32.2", "requests>=2.32.2; extra == \"remote\"");
        let windows = "requests>=3; sys_platform == \"win32\"";
        World::on("a10").python("3.9").dist("requests", "2.28.1", &[]).dist_requiring(
            "datasets",
            "4.0.0",
            &[],
            &[wanted, windows],
        )
    },
    ..BLANK
};
