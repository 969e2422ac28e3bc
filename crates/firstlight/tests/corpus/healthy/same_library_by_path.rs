//! LD_LIBRARY_PATH leads to the very file that the wheel would find by itself; spoilt by another copy there.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

const CUDART: &str = "nvidia/cuda_runtime/lib/libcudart.so.12";
const OPS: &str = "own_ops/_C.abi3.so";

pub(super) const PAIR: Pair = Pair {
    name: "same_library_by_path",
    rule: "library-path-shadows",
    found: Detection::Files(Severity::Error, OPS),
    opens: &[OPS],
    says: "undefined symbol: cudaMallocAsync, version libcudart.so.12",
    build: |twin| {
        let cudart = |symbol: &str| Library::named("libcudart.so.12").exports(&[symbol]);
        let own = cudart("cudaMallocAsync@libcudart.so.12");
        let ops = Library::new()
            .linked_with(&own)
            .wants(&["cudaMallocAsync"])
            .search("RUNPATH $ORIGIN/../nvidia/cuda_runtime/lib");
        let world = World::on("a10")
            .dist("own_ops", "1.0", &[OPS])
            .library(OPS, &ops)
            .dist("nvidia_cuda_runtime_cu12", "12.8.90", &[CUDART])
            .library(CUDART, &own)
            .var("LD_LIBRARY_PATH", "~/opt/cuda/lib64");
        match twin.pick(true, false) {
            true => world.library_at(
                "opt/cuda/lib64/libcudart.so.12",
                &cudart("cudaMalloc@libcudart.so.12"),
            ),
            false => world.link_to_site("opt/cuda/lib64/libcudart.so.12", CUDART),
        }
    },
    ..BLANK
};
