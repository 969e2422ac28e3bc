//! Row 15: flash-attn for CUDA 12 beside a torch for CUDA 13, which brings no libcudart.so.12, and with that library.

use super::{FLASH, NEW, TORCH};
use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_15_missing_library",
    rule: "missing-cuda-library",
    found: Detection::Files(Severity::Error, FLASH),
    says: "libcudart.so.12: cannot open shared object file: No such file or directory",
    opens: &[TORCH, FLASH],
    build: |twin| {
        let cudart = Library::named("libcudart.so.12").exports(&["cudaMalloc"]);
        let flash = Library::new()
            .linked_with(&cudart)
            .wants(&["cudaMalloc"])
            .search("RPATH $ORIGIN/nvidia/cuda_runtime/lib");
        let world = World::on("h200")
            .torch("2.11.0+cu130", &[NEW], &[])
            .dist("flash_attn", "2.8.3", &[FLASH])
            .library(FLASH, &flash);
        match twin.pick(true, false) {
            true => world,
            false => world.library("nvidia/cuda_runtime/lib/libcudart.so.12", &cudart),
        }
    },
    ..BLANK
};
