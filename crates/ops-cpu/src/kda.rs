//! Kimi Delta Attention on the CPU.

pub(crate) mod chunk;
mod operands;
mod parts;
pub(crate) mod recurrent;

use crate::CpuTable;
use ops::kda::KdaProblem;

/// Every variant over host memory of an op that is this machinery under a name, best first.
macro_rules! variants {
    ($op:literal) => {
        $crate::variants::variants! {
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

pub(crate) static CPU: CpuTable<KdaProblem> = CpuTable(variants!("kda"));
