use super::{Conv1dProblem, direct};
use crate::Variant;
use crate::cpu::variants::variants;

/// Every variant, best first.
pub(super) static VARIANTS: &[Variant<Conv1dProblem>] = variants! {
    "conv1d":
    direct Avx512 "direct.avx512",
    direct Avx2 "direct.avx2",
    direct Neon "direct.neon",
    direct Portable "direct.portable",
};
