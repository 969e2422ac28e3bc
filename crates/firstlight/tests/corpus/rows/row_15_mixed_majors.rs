//! Row 15 by its records: libraries for CUDA 12 left behind beside a torch for CUDA 13.

use super::NEW;
use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_15_mixed_majors",
    rule: "mixed-cuda-majors",
    found: Detection::Files(Severity::Warning, "nvidia_cublas_cu12-12.8.4.1.dist-info"),
    says: "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
    build: |twin| {
        let world = World::on("h200").torch("2.11.0+cu130", &[NEW], &[]);
        match twin.pick(true, false) {
            true => world.dist("nvidia_cublas_cu12", "12.8.4.1", &[]),
            false => world.dist("nvidia_cublas", "13.1.0.3", &[]),
        }
    },
    ..BLANK
};
