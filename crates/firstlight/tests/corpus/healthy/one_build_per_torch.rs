//! A package with a build for each torch, of which it takes the one that fits; spoilt by leaving that one out.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "one_build_per_torch",
    rule: "extension-other-torch",
    found: Detection::Files(Severity::Error, "deep_gemm/_C_28.so"),
    build: |twin| {
        let symbol = |torch: &str| format!("_ZN2at6detail{torch}Ev");
        let build = |torch: &str| {
            Library::new().linked_with(&Library::named("libc10.so")).wants(&[&symbol(torch)])
        };
        let (old, new) = ("deep_gemm/_C_28.so", "deep_gemm/_C_29.so");
        let world = World::on("h200")
            .torch("2.9.1+cu128", &[&symbol("5torch")], &[])
            .dist("deep_gemm", "2.1.0", twin.pick(&[old][..], &[old, new]))
            .library(old, &build("3old"));
        if twin.pick(true, false) { world } else { world.library(new, &build("5torch")) }
    },
    ..BLANK
};
