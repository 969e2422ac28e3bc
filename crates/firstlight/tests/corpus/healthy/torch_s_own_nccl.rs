//! torch with the NCCL it was built with; spoilt by the package for CUDA 11, which brings an older file of the same name
//! into the same folder.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

const NCCL: &str = "nvidia/nccl/lib/libnccl.so.2";
const TORCH: &str = "torch/lib/libtorch_cuda.so";

pub(super) const PAIR: Pair = Pair {
    name: "torch_s_own_nccl",
    rule: "cuda-library-too-old",
    found: Detection::Files(Severity::Error, NCCL),
    says: "undefined symbol: ncclAlltoAll",
    opens: &[TORCH],
    build: |twin| {
        let nccl = |symbols: &[&str]| Library::named("libnccl.so.2").exports(symbols);
        let (old, new) = (nccl(&["ncclSend"]), nccl(&["ncclSend", "ncclAlltoAll"]));
        let cuda = Library::named("libtorch_cuda.so")
            .linked_with(&new)
            .wants(&["ncclSend", "ncclAlltoAll"])
            .search("RUNPATH $ORIGIN/../../nvidia/nccl/lib")
            .code(&["sm_80", "sm_90"]);
        let world = World::on("h200")
            .torch("2.10.0+cu128", &[], &["sm_80", "sm_90"])
            .library(TORCH, &cuda)
            .dist("nvidia_nccl_cu12", "2.28.9", &[NCCL])
            .library(NCCL, &new);
        twin.broken(world, |world| {
            world.dist("nvidia_nccl_cu11", "2.14.3", &[NCCL]).library(NCCL, &old)
        })
    },
    ..BLANK
};
