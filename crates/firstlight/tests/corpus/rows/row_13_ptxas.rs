//! Row 13: Triton's own ptxas on a GB10, of CUDA 12.8, which does not know sm_121a, and of 12.9, which does.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_13_ptxas",
    rule: "triton-ptxas-too-old",
    found: Detection::Files(Severity::Error, "triton/backends/nvidia/bin/ptxas"),
    says: "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
    build: |twin| {
        let release = twin.pick("12.8, V12.8.93", "12.9, V12.9.86");
        let words = format!(
            "ptxas: NVIDIA (R) Ptx optimizing assembler\nCuda compilation tools, release {release}\n"
        );
        let ptxas = "triton/backends/nvidia/bin/ptxas";
        World::on("gb10")
            .torch("2.9.1+cu130", &[], &["sm_80", "sm_90", "sm_100", "sm_110", "sm_120"])
            .dist("triton", "3.5.1", &[ptxas])
            .library(ptxas, &Library::program(&words))
    },
    ..BLANK
};
