//! Row 19: the driver was upgraded on disk and the old kernel module is still loaded.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_19_driver_library",
    rule: "driver-library-mismatch",
    found: Detection::Files(Severity::Error, "/sys/module/nvidia/version"),
    says: "Failed to initialize NVML: Driver/library version mismatch",
    build: |twin| {
        twin.broken(World::on("a10"), |world| {
            world
                .nvml_fails("Driver/library version mismatch")
                .file("sys/module/nvidia/version", "550.163.01\n")
        })
    },
    ..BLANK
};
