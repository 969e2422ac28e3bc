//! bitsandbytes has a library for each CUDA release, all but one of which want libraries that are not here; spoilt by an
//! extension that has no other build.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "bitsandbytes_many",
    rule: "missing-cuda-library",
    found: Detection::Files(Severity::Error, "own_ops/_C.abi3.so"),
    build: |twin| {
        let wants = |name: &str| Library::new().linked_with(&Library::named(name));
        let builds =
            [("118", "libcudart.so.11.0"), ("126", "libcudart.so.12"), ("130", "libcudart.so.13")];
        let files = builds.map(|(build, _)| format!("bitsandbytes/libbitsandbytes_cuda{build}.so"));
        let names = files.each_ref().map(String::as_str);
        let cudart = "nvidia/cu13/lib/libcudart.so.13";
        let world = World::on("h200")
            .torch("2.9.1+cu130", &[], &["sm_80", "sm_90"])
            .dist("nvidia_cuda_runtime", "13.0.48", &[cudart])
            .library(cudart, &Library::named("libcudart.so.13"))
            .dist("bitsandbytes", "0.48.2", &names);
        let world = names
            .iter()
            .zip(builds)
            .fold(world, |world, (file, (_, name))| world.library(file, &wants(name)));
        twin.broken(world, |world| {
            let file = "own_ops/_C.abi3.so";
            world.dist("own_ops", "1.0", &[file]).library(file, &wants("libcudart.so.11.0"))
        })
    },
    ..BLANK
};
