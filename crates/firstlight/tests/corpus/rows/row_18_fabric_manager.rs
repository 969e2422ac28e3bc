//! Row 18, error 802: a machine with NVSwitches on which the fabric manager does not run, and on which it does.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_18_fabric_manager",
    rule: "fabric-manager",
    found: Detection::Files(Severity::Error, "/proc/driver/nvidia-nvswitch/devices"),
    says: "Error 802: system not yet initialized",
    build: |twin| {
        let world = World::with_gpu("NVIDIA H100 80GB HBM3", "9.0", "570.148.08", "12.8")
            .file("proc/driver/nvidia-nvswitch/devices/0000:05:00.0/information", "")
            .file("proc/driver/nvidia-nvswitch/devices/0000:06:00.0/information", "")
            .file("proc/1/comm", "systemd\n");
        match twin.pick(true, false) {
            true => world,
            false => world.file("proc/2841/comm", "nv-fabricmanage\n"),
        }
    },
    ..BLANK
};
