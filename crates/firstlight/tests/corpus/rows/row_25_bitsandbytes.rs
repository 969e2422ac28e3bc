//! Row 25: bitsandbytes without a library for CUDA 12.9, and with it.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_25_bitsandbytes",
    rule: "bitsandbytes-library",
    found: Detection::Files(Severity::Error, "bitsandbytes-0.45.5.dist-info/RECORD"),
    says: "RuntimeError: Configured CUDA binary not found at /v/bitsandbytes/libbitsandbytes_cuda129.so",
    build: |twin| {
        let files = ["cpu", "cuda126", "cuda128", twin.pick("cuda125", "cuda129")];
        let files = files.map(|build| format!("bitsandbytes/libbitsandbytes_{build}.so"));
        let names = files.each_ref().map(String::as_str);
        let world = World::on("h200").torch("2.9.1+cu129", &[], &["sm_80", "sm_90"]).dist(
            "bitsandbytes",
            "0.45.5",
            &names,
        );
        names.iter().fold(world, |world, name| {
            world.library(name, &Library::new().code(&["sm_80", "sm_90"]))
        })
    },
    ..BLANK
};
