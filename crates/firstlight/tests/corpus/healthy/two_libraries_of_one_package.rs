//! A package whose module needs two libraries with names that differ in one word, and a newer NCCL; spoilt by an older NCCL,
//! which the clean library beside the other must not excuse.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

const OPS: &str = "own_ops/_C.abi3.so";
const CPU: &str = "own_ops/lib/libown_cpu.so";
const CUDA: &str = "own_ops/lib/libown_cuda.so";
const NCCL: &str = "nvidia/nccl/lib/libnccl.so.2";

pub(super) const PAIR: Pair = Pair {
    name: "two_libraries_of_one_package",
    rule: "cuda-library-too-old",
    found: Detection::Files(Severity::Error, CUDA),
    says: "undefined symbol: ncclCommWindowRegister",
    opens: &[OPS],
    build: |twin| {
        let newer = Library::named("libnccl.so.2").exports(&["ncclInit", "ncclCommWindowRegister"]);
        let here = match twin.pick(true, false) {
            true => Library::named("libnccl.so.2").exports(&["ncclInit"]),
            false => newer.clone(),
        };
        let cpu = Library::named("libown_cpu.so");
        let cuda = Library::named("libown_cuda.so")
            .linked_with(&newer)
            .wants(&["ncclCommWindowRegister"])
            .search("RPATH $ORIGIN/../../nvidia/nccl/lib");
        let ops = Library::new().linked_with(&cpu).linked_with(&cuda).search("RPATH $ORIGIN/lib");
        World::on("h200")
            .dist("own_ops", "1.0", &[OPS, CPU, CUDA])
            .library(OPS, &ops)
            .library(CPU, &cpu)
            .library(CUDA, &cuda)
            .dist("nvidia_nccl_cu12", twin.pick("2.21.5", "2.27.3"), &[NCCL])
            .library(NCCL, &here)
    },
    ..BLANK
};
