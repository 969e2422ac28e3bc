//! Row 3: flash-attn for the torch that had SetDevice(signed char), beside one that has SetDevice(signed char, bool).

use super::{FLASH, TORCH, extension};
use crate::judge::{Detection, PAIR as BLANK, Pair};
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_03_set_device",
    rule: "torch-minor-drift",
    found: Detection::Files(Severity::Error, FLASH),
    says: "undefined symbol: _ZN3c104cuda9SetDeviceEa",
    opens: &[TORCH, FLASH],
    build: |twin| {
        let new = "_ZN3c104cuda9SetDeviceEab";
        extension("2.9.1+cu128", new, twin.pick("_ZN3c104cuda9SetDeviceEa", new))
    },
    ..BLANK
};
