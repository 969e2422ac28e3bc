//! Kimi Delta Attention on the CPU, and its gradient.

pub(crate) mod backward;
pub(crate) mod chunk;
mod operands;
mod parts;
pub(crate) mod recurrent;

use crate::CpuTable;
use ops::GradientProblem;
use ops::kda::KdaProblem;

/// The CPU variants of an op that this module computes (`kda`, `gated_delta`), best first.
macro_rules! variants {
    ($op:literal) => {
        $crate::variants::variants! {
            $op:
            // No `chunk` for Avx512Bf16: with beta = 2 and no decay, its rounded products give the state a relative
            // error of 7e-3, above the tolerance of 5e-3. A refusal cannot depend on beta, which is data.
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
/// The variants of the backward op of such an op, best first.
macro_rules! backward_variants {
    ($op:literal) => {
        &[
            $crate::variants::variant!($op, backward, Avx512, "recurrent.avx512"),
            $crate::variants::variant!($op, backward, Avx2, "recurrent.avx2"),
            $crate::variants::variant!($op, backward, Neon, "recurrent.neon"),
            $crate::variants::variant!($op, backward, Portable, "recurrent.portable"),
        ]
    };
}
pub(crate) use {backward_variants, variants};

pub(crate) static CPU: CpuTable<KdaProblem> = CpuTable(variants!("kda"));

/// The variants of the backward op, best first.
pub(crate) static BACKWARD: CpuTable<GradientProblem<KdaProblem>> =
    CpuTable(backward_variants!("kda_backward"));
