//! Row 29: mamba-ssm's compiled files for x86-64 on a GH200, and its own.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_29_processor",
    rule: "wrong-architecture",
    found: Detection::Files(Severity::Error, "selective_scan_cuda"),
    build: |twin| {
        let world = World::on("gh200").torch("2.9.0+cu128", &[], &["sm_80", "sm_90"]);
        let file = "selective_scan_cuda.abi3.so";
        let world = world.dist("mamba_ssm", "2.2.6.post3", &[file]).dist(
            "causal_conv1d",
            "1.5.3.post1",
            &["causal_conv1d_cuda.abi3.so"],
        );
        let scan = Library::new().code(&["sm_90"]);
        let world = world.library("causal_conv1d_cuda.abi3.so", &scan);
        match twin.pick(true, false) {
            true => world.foreign_library(file, &scan, "x86_64"),
            false => world.library(file, &scan),
        }
    },
    ..BLANK
};
