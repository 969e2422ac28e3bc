//! Row 2: flash-attn for the old C++ ABI beside a torch with the new one.

use super::{FLASH, NEW, OLD, TORCH, extension};
use crate::judge::{Detection, PAIR as BLANK, Pair};
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_02_old_abi",
    rule: "extension-old-abi",
    found: Detection::Files(Severity::Error, FLASH),
    says: "undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs",
    opens: &[TORCH, FLASH],
    build: |twin| extension("2.9.1+cu128", NEW, twin.pick(OLD, NEW)),
    ..BLANK
};
