//! A torch for AMD's GPUs beside an NVIDIA card that drives a screen: it has no CUDA because its user wanted none.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "rocm_torch",
    rule: "cpu-only-torch",
    found: Detection::Files(Severity::Error, "cuda = None"),
    build: |twin| {
        let hip = twin.pick("", "hip: Optional[str] = '6.4.43484'\n");
        World::on("rtx4090").dist("torch", "2.9.1", &[]).in_site(
            "torch/version.py",
            &format!("__version__ = '2.9.1+rocm6.4'\ncuda: Optional[str] = None\n{hip}"),
        )
    },
    ..BLANK
};
