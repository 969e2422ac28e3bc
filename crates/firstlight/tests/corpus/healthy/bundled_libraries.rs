//! A manylinux wheel with its libraries in a `.libs` folder beside it; spoilt by an auditwheel that left CUDA's out.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

const OPS: &str = "own_ops/_C.abi3.so";

pub(super) const PAIR: Pair = Pair {
    name: "bundled_libraries",
    rule: "missing-cuda-library",
    found: Detection::Files(Severity::Error, OPS),
    says: "libcurand.so.10: cannot open shared object file",
    opens: &[OPS],
    build: |twin| {
        let random = Library::named("libcurand.so.10").exports(&["curandCreateGenerator"]);
        let fortran = Library::named("libgfortran-040039e1.so.5.0.0").exports(&["_gfortran_stop"]);
        let ops = Library::new()
            .linked_with(&random)
            .linked_with(&fortran)
            .wants(&["curandCreateGenerator", "_gfortran_stop"])
            .search("RPATH $ORIGIN/../own_ops.libs");
        let world = World::on("a10")
            .dist("own_ops", "1.0", &[OPS, "own_ops.libs/libgfortran-040039e1.so.5.0.0"])
            .library(OPS, &ops)
            .library("own_ops.libs/libgfortran-040039e1.so.5.0.0", &fortran);
        if twin.pick(true, false) {
            world
        } else {
            world.library("own_ops.libs/libcurand.so.10", &random)
        }
    },
    ..BLANK
};
