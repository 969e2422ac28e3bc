//! An extension for the stable ABI (abi3, aoti_torch_*), which goes with every torch that exports those; spoilt by a torch
//! that has not the one it wants.

use crate::judge::{Detection, PAIR as BLANK, Pair};
use crate::library::Library;
use crate::world::World;
use facts::Severity;

const FLASH: &str = "flash_attn_3/_C.abi3.so";

pub(super) const PAIR: Pair = Pair {
    name: "stable_abi",
    rule: "extension-other-torch",
    found: Detection::Files(Severity::Error, FLASH),
    says: "",
    build: |twin| {
        let c10 = Library::named("libc10.so");
        World::on("h200")
            .python("3.13")
            .torch(
                "2.10.0+cu128",
                &[twin.pick("aoti_torch_empty", "aoti_torch_new_empty")],
                &["sm_80", "sm_90"],
            )
            .dist("flash_attn_3", "3.0.0b1", &[FLASH])
            .library(
                FLASH,
                &Library::new()
                    .linked_with(&c10)
                    .wants(&["aoti_torch_new_empty"])
                    .code(&["sm_80", "sm_90a"]),
            )
    },
    ..BLANK
};
