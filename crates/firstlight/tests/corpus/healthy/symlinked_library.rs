//! uv's link mode: every file of site-packages is a link into a cache, and `$ORIGIN` is where the link lies; spoilt by a
//! cache that was cleaned.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

const CUDART: &str = "nvidia/cuda_runtime/lib/libcudart.so.12";
const CACHED: &str = "home/user/.cache/uv/archive-v0/x/libcudart.so.12";
const OPS: &str = "own_ops/_C.abi3.so";

pub(super) const PAIR: Pair = Pair {
    name: "symlinked_library",
    rule: "missing-cuda-library",
    found: Detection::Files(Severity::Error, OPS),
    says: "libcudart.so.12: cannot open shared object file",
    opens: &[OPS],
    build: |twin| {
        let cudart = Library::named("libcudart.so.12").exports(&["cudaMalloc"]);
        let ops = Library::new()
            .exports(&["PyInit__C"])
            .linked_with(&cudart)
            .wants(&["cudaMalloc"])
            .search("RUNPATH $ORIGIN/../nvidia/cuda_runtime/lib");
        let world = World::on("a10").uv().dist("own_ops", "1.0", &[OPS]).dist(
            "nvidia_cuda_runtime_cu12",
            "12.8.90",
            &[CUDART],
        );
        // The extension is a link too: its $ORIGIN has to be site-packages for the path to lead anywhere.
        let world = world.library_at("home/user/.cache/uv/archive-v0/y/_C.abi3.so", &ops);
        let world = world
            .site_link(OPS, "home/user/.cache/uv/archive-v0/y/_C.abi3.so")
            .site_link(CUDART, CACHED);
        if twin.pick(true, false) { world } else { world.library_at(CACHED, &cudart) }
    },
    ..BLANK
};
