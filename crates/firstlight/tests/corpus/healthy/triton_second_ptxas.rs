//! Triton 3.6 on a B300: its first ptxas is too old for it, and its second, for Blackwell, is not; spoilt by only the first.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "triton_second_ptxas",
    rule: "triton-ptxas-too-old",
    found: Detection::Files(Severity::Error, "triton/backends/nvidia/bin/ptxas"),
    build: |twin| {
        let ptxas = |release: &str| {
            Library::program(&format!("Cuda compilation tools, release {release}\n"))
        };
        let folder = "triton/backends/nvidia/bin";
        let world = World::with_gpu("NVIDIA B300 SXM6 AC", "10.3", "580.95.05", "13.0")
            .torch("2.10.0+cu130", &[], &["sm_80", "sm_90", "sm_100", "sm_120"])
            .dist("triton", "3.6.0", &[])
            .library(&format!("{folder}/ptxas"), &ptxas("12.8, V12.8.93"));
        let second = format!("{folder}/ptxas-blackwell");
        if twin.pick(true, false) {
            world
        } else {
            world.library(&second, &ptxas("12.9, V12.9.86"))
        }
    },
    ..BLANK
};
