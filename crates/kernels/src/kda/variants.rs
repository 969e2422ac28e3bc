use super::{KdaProblem, chunk, recurrent};
use crate::Variant;

/// Every variant over host memory of an op that is this machinery under a name, best first.
macro_rules! variants {
    ($op:literal) => {
        $crate::cpu::variants::variants! {
            $op:
            // No `chunk` for Avx512Bf16: with beta = 2 and no decay its rounded products put the state 7e-3 off, over
            // the table's 5e-3, and beta is data that a refusal cannot see.
            chunk Avx512 "chunk.avx512",
            recurrent Avx512 "recurrent.avx512",
            chunk Avx2 "chunk.avx2",
            recurrent Avx2 "recurrent.avx2",
            chunk Neon "chunk.neon",
            recurrent Neon "recurrent.neon",
            chunk Portable "chunk.portable",
            recurrent Portable "recurrent.portable",
        }
    };
}
pub(crate) use variants;

pub(super) static VARIANTS: &[Variant<KdaProblem>] = variants!("kda");
