//! Row 5: flash-attn for a torch that had c10::optional, beside one that has std::optional.

use super::{FLASH, TORCH, extension};
use crate::judge::{Detection, PAIR as BLANK, Pair};
use facts::Severity;

const OLD: &str = "_ZN2at4_ops10zeros_like4callERKNS_6TensorEN3c108optionalINS5_10ScalarTypeEEENS6_INS5_6LayoutEEENS6_INS5_6DeviceEEENS6_IbEENS6_INS5_12MemoryFormatEEE";
const NEW: &str = "_ZN2at4_ops10zeros_like4callERKNS_6TensorESt8optionalIN3c1010ScalarTypeEES5_INS6_6LayoutEES5_INS6_6DeviceEES5_IbES5_INS6_12MemoryFormatEE";

pub(super) const PAIR: Pair = Pair {
    name: "row_05_optional",
    rule: "optional-type-drift",
    found: Detection::Files(Severity::Error, FLASH),
    says: "undefined symbol: _ZN2at4_ops10zeros_like4callERKNS_6TensorEN3c108optionalINS5_10ScalarTypeEEE",
    opens: &[TORCH, FLASH],
    build: |twin| extension("2.5.1+cu124", NEW, twin.pick(OLD, NEW)),
    ..BLANK
};
