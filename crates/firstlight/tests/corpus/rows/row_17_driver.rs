//! Row 17: a torch for CUDA 13 on driver 550, and one for CUDA 12.8, which that driver runs.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_17_driver",
    rule: "driver-too-old",
    found: Detection::Files(Severity::Error, "torch/version.py"),
    says: "The NVIDIA driver on your system is too old (found version 12040).",
    build: |twin| {
        let version = twin.pick("2.10.0+cu130", "2.10.0+cu128");
        World::on("rtx4090").torch(version, &[], &["sm_75", "sm_80", "sm_86", "sm_90"])
    },
    ..BLANK
};
