//! torchvision 0.29, which is built for every later torch, beside a newer torch; spoilt by one built for its own alone.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "torchvision_for_later_torch",
    rule: "torch-pairs",
    found: Detection::Files(Severity::Error, "Requires-Dist: torch==2.11.0"),
    build: |twin| {
        let (version, torch) = twin.pick(("0.26.0", "torch==2.11.0"), ("0.29.0", "torch>=2.13"));
        World::on("h200")
            .python("3.14")
            .uv()
            .torch("2.14.0+cu130", &[], &["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"])
            .dist_requiring("torchvision", version, &[], &[torch])
    },
    ..BLANK
};
