//! Row 4: flash-attn built from source against a newer torch than the one it runs with.

use super::{FLASH, TORCH, extension};
use crate::judge::{Detection, PAIR as BLANK, Pair};
use facts::Severity;

const OLD: &str = "_ZN3c107WarningC1ENS_7variantIJNS0_11UserWarningENS0_18DeprecationWarningEEEERKNS_14SourceLocationESsb";
const NEW: &str = "_ZN3c107WarningC1ESt7variantIJNS0_11UserWarningENS0_18DeprecationWarningEEERKNS_14SourceLocationESsb";

pub(super) const PAIR: Pair = Pair {
    name: "row_04_other_torch",
    rule: "extension-other-torch",
    found: Detection::Files(Severity::Error, FLASH),
    says: "undefined symbol: _ZN3c107WarningC1ESt7variantIJNS0_11UserWarningE",
    opens: &[TORCH, FLASH],
    build: |twin| extension("2.1.2+cu121", OLD, twin.pick(NEW, OLD)),
    ..BLANK
};
