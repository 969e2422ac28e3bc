//! torch for CUDA 12.9 on a driver of 12.4, which runs it: only a new major version does not.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "rtx4090_minor_version",
    rule: "driver-too-old",
    found: Detection::Files(Severity::Error, "torch/version.py"),
    says: "CUDA driver version is insufficient for CUDA runtime version",
    build: |twin| {
        let version = twin.pick("2.9.1+cu130", "2.9.1+cu129");
        World::on("rtx4090").python("3.10").uv().torch(
            version,
            &[],
            &["sm_75", "sm_80", "sm_86", "sm_90"],
        )
    },
    ..BLANK
};
