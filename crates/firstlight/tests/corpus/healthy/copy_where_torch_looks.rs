//! A library of NVIDIA's that finds another by its path; spoilt by removing that one while Triton's copy of it stays, which
//! nothing looks for.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

const OPS: &str = "own_ops/_C.abi3.so";
const CUSPARSE: &str = "nvidia/cusparse/lib/libcusparse.so.12";
const LINK: &str = "nvidia/nvjitlink/lib/libnvJitLink.so.12";
const COPY: &str = "triton/backends/nvidia/lib/libnvJitLink.so.12";

pub(super) const PAIR: Pair = Pair {
    name: "copy_where_torch_looks",
    rule: "missing-cuda-library",
    found: Detection::Files(Severity::Error, CUSPARSE),
    says: "libnvJitLink.so.12: cannot open shared object file: No such file or directory",
    opens: &[OPS],
    build: |twin| {
        let link = Library::named("libnvJitLink.so.12").exports(&["nvJitLinkCreate"]);
        let cusparse = Library::named("libcusparse.so.12")
            .linked_with(&link)
            .wants(&["nvJitLinkCreate"])
            .search("RPATH $ORIGIN/../../nvjitlink/lib");
        let ops =
            Library::new().linked_with(&cusparse).search("RPATH $ORIGIN/../nvidia/cusparse/lib");
        let world = World::on("h200")
            .dist("own_ops", "1.0", &[OPS])
            .library(OPS, &ops)
            .dist("nvidia_cusparse_cu12", "12.5.8.93", &[CUSPARSE])
            .library(CUSPARSE, &cusparse)
            .dist("triton", "3.4.0", &[COPY])
            .library(COPY, &link);
        match twin.pick(true, false) {
            true => world,
            false => world.dist("nvidia_nvjitlink_cu12", "12.8.93", &[LINK]).library(LINK, &link),
        }
    },
    ..BLANK
};
