//! Row 23: the toolkit builds would take is of another CUDA major version than torch, and of the same.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_23_toolkit",
    rule: "cuda-versions",
    found: Detection::Files(Severity::Warning, "/opt/toolkit/version.json"),
    says: "The detected CUDA version (12.3) mismatches the version that was used to compile PyTorch (11.8)",
    build: |twin| {
        World::on("a10")
            .torch("2.5.1+cu118", &[], &["sm_80", "sm_86", "sm_90"])
            .toolkit("opt/toolkit", twin.pick("12.3.2", "11.8.0"))
            .var("CUDA_HOME", "/opt/toolkit")
    },
    ..BLANK
};
