//! Row 18, error 804: NVIDIA's compatibility libcuda in front of the driver's own on a GeForce card, and not in front.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_18_compat_library",
    rule: "forward-compatibility",
    found: Detection::Files(Severity::Error, "/usr/local/cuda-12.8/compat/libcuda.so.570.86.15"),
    says: "Error 804: forward compatibility was attempted on non supported HW",
    build: |twin| {
        World::on("rtx4090")
            .file("usr/lib/x86_64-linux-gnu/libcuda.so.550.163.01", "")
            .link("usr/lib/x86_64-linux-gnu/libcuda.so.1", "libcuda.so.550.163.01")
            .file("usr/local/cuda-12.8/compat/libcuda.so.570.86.15", "")
            .link("usr/local/cuda-12.8/compat/libcuda.so.1", "libcuda.so.570.86.15")
            .var(
                "LD_LIBRARY_PATH",
                twin.pick("/usr/local/cuda-12.8/compat", "/usr/local/cuda-12.8/lib64"),
            )
    },
    ..BLANK
};
