//! NVIDIA's wheel of torch in a Jetson's system Python, of a version that is no release; spoilt by server code in it.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "jetson_nvidia_wheel",
    rule: "jetson-server-wheel",
    found: Detection::Files(Severity::Error, "torch/lib/libtorch_cuda.so"),
    build: |twin| {
        let version = "2.5.0a0+872d972e41.nv24.08";
        World::on("jetson-orin")
            .python("3.10")
            .dist("torch", version, &["torch/lib/libtorch_cuda.so"])
            .in_site(
                "torch/version.py",
                &format!("__version__ = '{version}'\ncuda: Optional[str] = '12.6'\n"),
            )
            .library(
                "torch/lib/libtorch_cuda.so",
                &Library::named("libtorch_cuda.so").code(&[twin.pick("sm_80", "sm_87")]),
            )
    },
    ..BLANK
};
