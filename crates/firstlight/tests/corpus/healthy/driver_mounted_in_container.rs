//! A container with the host's driver libraries mounted in, of the module's version; spoilt by one that was started
//! before the host's driver was upgraded.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "driver_mounted_in_container",
    rule: "driver-library-mismatch",
    found: Detection::Files(
        Severity::Error,
        "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.163.01",
    ),
    build: |twin| {
        let world = World::on("rtx4090").torch("2.6.0+cu124", &[], &["sm_80", "sm_86", "sm_90"]);
        twin.broken(world, |world| {
            world
                .nvml_fails("Driver/library version mismatch")
                .file("sys/module/nvidia/version", "580.95.05\n")
        })
    },
    ..BLANK
};
