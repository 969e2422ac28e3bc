//! An extension that finds the wheel's library by its own path; spoilt by a path that leads past it: the library lies in the
//! environment, but out of the loader's reach.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

const OPS: &str = "own_ops/_C.abi3.so";
const CUFFT: &str = "nvidia/cufft/lib/libcufft.so.11";

pub(super) const PAIR: Pair = Pair {
    name: "library_within_reach",
    rule: "missing-cuda-library",
    found: Detection::Files(Severity::Info, OPS),
    says: "libcufft.so.11: cannot open shared object file",
    opens: &[OPS],
    build: |twin| {
        let cufft = Library::named("libcufft.so.11").exports(&["cufftPlan1d"]);
        let ops = Library::new().linked_with(&cufft).wants(&["cufftPlan1d"]).search(
            twin.pick("RUNPATH $ORIGIN/../cufft/lib", "RUNPATH $ORIGIN/../nvidia/cufft/lib"),
        );
        World::on("a10")
            .torch("2.9.1+cu128", &[], &["sm_80", "sm_86"])
            .dist("own_ops", "1.0", &[OPS])
            .library(OPS, &ops)
            .dist("nvidia_cufft_cu12", "11.3.3.83", &[CUFFT])
            .library(CUFFT, &cufft)
    },
    ..BLANK
};
