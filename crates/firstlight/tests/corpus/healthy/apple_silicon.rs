//! torch on an Apple M4 Max, which has no CUDA anywhere; spoilt by being a GH200's.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "apple_silicon",
    rule: "cpu-only-torch",
    found: Detection::Files(Severity::Error, "cuda = None"),
    build: |twin| {
        World::on(twin.pick("gh200", "m4-max"))
            .dist("torch", "2.7.1", &[])
            .in_site("torch/version.py", "__version__ = '2.7.1'\ncuda: Optional[str] = None\n")
            .in_site("torch/lib/libtorch_cpu.dylib", "")
    },
    ..BLANK
};
