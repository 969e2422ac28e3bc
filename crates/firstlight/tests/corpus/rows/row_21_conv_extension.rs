//! Row 21: mamba-ssm with a causal-conv1d whose compiled file was never built, and with one that has it.

use super::kernels;
use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_21_conv_extension",
    rule: "conv-extension-missing",
    found: Detection::Files(Severity::Error, "causal_conv1d-1.5.3.post1.dist-info/RECORD"),
    says: "AttributeError: 'NoneType' object has no attribute 'causal_conv1d_fwd'",
    build: |twin| {
        let world = World::on("a10").torch("2.9.1+cu128", &[], &["sm_80", "sm_86", "sm_90"]);
        let world =
            kernels(world, "mamba_ssm", "2.2.6.post3", "selective_scan_cuda", &["sm_80", "sm_90"]);
        match twin.pick(true, false) {
            true => world.dist("causal_conv1d", "1.5.3.post1", &["causal_conv1d/__init__.py"]),
            false => kernels(
                world,
                "causal_conv1d",
                "1.5.3.post1",
                "causal_conv1d_cuda",
                &["sm_80", "sm_90"],
            ),
        }
    },
    ..BLANK
};
