//! Two distributions in one namespace package (`nvidia`), each owning its part; spoilt by the second being for CUDA 13.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "namespace_package",
    rule: "mixed-cuda-majors",
    found: Detection::Files(Severity::Warning, "nvidia_nvjitlink-13.0.88.dist-info"),
    build: |twin| {
        let cublas = "nvidia/cublas/lib/libcublas.so.12";
        let world = World::on("a10")
            .uv()
            .torch("2.9.1+cu128", &[], &["sm_80", "sm_86"])
            .dist("nvidia_cublas_cu12", "12.8.4.1", &[cublas])
            .library(cublas, &Library::named("libcublas.so.12"))
            // The version of this one is a driver's, and no CUDA release.
            .dist("nvidia_ml_py", "13.580.82", &["pynvml.py"]);
        match twin.pick(true, false) {
            true => world.dist("nvidia_nvjitlink", "13.0.88", &[]),
            false => world.dist("nvidia_nvjitlink_cu12", "12.8.93", &[]),
        }
    },
    ..BLANK
};
