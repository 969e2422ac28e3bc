//! Row 12, which is benign: a GB10 (12.1) runs the code for 12.0 that torch warns about; and a torch with code for 12.1.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_12_benign_warning",
    rule: "capability-warning",
    found: Detection::Files(Severity::Info, "torch/lib/libtorch_cuda.so"),
    says: "Minimum and Maximum cuda capability supported by this version of PyTorch is (8.0) - (12.0)",
    build: |twin| {
        let last = twin.pick("sm_120", "sm_121");
        World::on("gb10").torch("2.9.1+cu130", &[], &["sm_80", "sm_90", "sm_100", "sm_110", last])
    },
    ..BLANK
};
