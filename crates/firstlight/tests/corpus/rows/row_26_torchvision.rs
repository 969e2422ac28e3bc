//! Row 26: a torchvision that was built for another torch, and the one that was built for this.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_26_torchvision",
    rule: "torch-pairs",
    found: Detection::Files(Severity::Error, "dist-info/METADATA"),
    says: "RuntimeError: operator torchvision::nms does not exist",
    build: |twin| {
        let (version, torch) = twin.pick(("0.21.0", "torch==2.6.0"), ("0.24.1", "torch==2.9.1"));
        World::on("a10").torch("2.9.1+cu128", &[], &["sm_80", "sm_86"]).dist_requiring(
            "torchvision",
            version,
            &[],
            &[torch],
        )
    },
    ..BLANK
};
