//! Row 28, which says nothing: causal-conv1d with code for sm_103 on a B300, and with code for sm_100, which is right there.

use super::kernels;
use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_28_miscompile",
    rule: "sm103-miscompile",
    found: Detection::Files(Severity::Error, "causal_conv1d_cuda"),
    build: |twin| {
        let world = World::with_gpu("NVIDIA B300 SXM6 AC", "10.3", "580.95.05", "13.0").torch(
            "2.9.1+cu130",
            &[],
            &["sm_80", "sm_90", "sm_100", "sm_120"],
        );
        let images: &[&str] = twin.pick(&["sm_100", "sm_103"], &["sm_100"]);
        kernels(world, "causal_conv1d", "1.5.3.post1", "causal_conv1d_cuda", images)
    },
    ..BLANK
};
