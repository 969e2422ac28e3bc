//! Row 1: flash-attn for the new C++ ABI beside a torch with the old one.

use super::{FLASH, NEW, OLD, TORCH, extension};
use crate::judge::{Detection, PAIR as BLANK, Pair};
use facts::Severity;

pub(super) const PAIR: Pair = Pair {
    name: "row_01_new_abi",
    rule: "extension-new-abi",
    found: Detection::Files(Severity::Error, FLASH),
    says: "undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
    opens: &[TORCH, FLASH],
    build: |twin| extension("2.6.0+cu124", OLD, twin.pick(NEW, OLD)),
    ..BLANK
};
