//! Row 7: PyPI's aarch64 wheel of torch 2.9 on a GH200, and the one of PyTorch's own index.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_07_cpu_only",
    rule: "cpu-only-torch",
    found: Detection::Files(Severity::Error, "torch/version.py"),
    says: "AssertionError: Torch not compiled with CUDA enabled",
    build: |twin| match twin.pick(true, false) {
        true => World::on("gh200").uv().torch("2.9.0+cpu", &[], &[]),
        false => World::on("gh200").uv().torch("2.9.0+cu128", &[], &["sm_80", "sm_90"]),
    },
    ..BLANK
};
