use super::{SsdProblem, chunk, recurrent};
use crate::Variant;
use crate::cpu::variants::variants;

/// Every variant, best first.
pub(super) static VARIANTS: &[Variant<SsdProblem>] = variants! {
    "ssd":
    chunk Avx512 "chunk.avx512",
    chunk Avx2 "chunk.avx2",
    chunk Neon "chunk.neon",
    chunk Portable "chunk.portable",
    recurrent Avx512 "recurrent.avx512",
    recurrent Avx2 "recurrent.avx2",
    recurrent Neon "recurrent.neon",
    recurrent Portable "recurrent.portable",
};
