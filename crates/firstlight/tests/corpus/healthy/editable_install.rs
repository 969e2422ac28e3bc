//! causal-conv1d installed in editable mode, whose compiled file lies in its source folder; spoilt by one never built.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::rows::kernels;
use crate::world::World;
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "editable_install",
    rule: "conv-extension-missing",
    found: Detection::Files(Severity::Error, "causal_conv1d-1.5.3.dist-info/RECORD"),
    build: |twin| {
        let world = World::on("a10").torch("2.9.1+cu128", &[], &["sm_80", "sm_86"]);
        let world = kernels(world, "mamba_ssm", "2.2.6.post3", "selective_scan_cuda", &["sm_80"])
            .dist("causal_conv1d", "1.5.3", &["__editable__.causal_conv1d-1.5.3.pth"])
            .in_site("__editable__.causal_conv1d-1.5.3.pth", "/home/user/causal-conv1d\n")
            .in_site(
                "causal_conv1d-1.5.3.dist-info/direct_url.json",
                r#"{"url": "file:///home/user/causal-conv1d", "dir_info": {"editable": true}}"#,
            )
            .file("home/user/causal-conv1d/setup.py", "");
        let file = world.extension("home/user/causal-conv1d/causal_conv1d_cuda");
        if twin.pick(true, false) {
            world
        } else {
            world.library_at(&file, &Library::new().code(&["sm_86"]))
        }
    },
    ..BLANK
};
