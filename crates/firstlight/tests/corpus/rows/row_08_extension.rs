//! Row 8 for an extension (field row R3-02): FFPA built without its Hopper switch on an H200.

use super::kernels;
use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_08_extension",
    rule: "no-kernel-image",
    found: Detection::Files(Severity::Error, "pyffpa_cuda"),
    says: "CUDA error: no kernel image is available for execution on the device",
    build: |twin| {
        let world =
            World::on("h200").torch("2.9.1+cu128", &[], &["sm_80", "sm_90", "sm_100", "sm_120"]);
        let images: &[&str] = twin.pick(&["sm_80", "sm_89"], &["sm_80", "sm_89", "sm_90a"]);
        kernels(world, "ffpa_attn", "0.0.2.1", "pyffpa_cuda", images)
    },
    ..BLANK
};
