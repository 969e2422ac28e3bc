//! Mamba-2's state space scan (SSD) on the CPU, and its gradient.

mod backward;
mod chunk;
mod decay;
mod operands;
mod recurrent;

use crate::CpuTable;
use crate::variants::variants;
use ops::GradientProblem;
use ops::ssd::SsdProblem;

/// Every variant, best first.
pub(crate) static CPU: CpuTable<SsdProblem> = CpuTable(variants! {
    "ssd":
    chunk Avx512 "chunk.avx512",
    chunk Avx2 "chunk.avx2",
    chunk Neon "chunk.neon",
    chunk Portable "chunk.portable",
    recurrent Avx512 "recurrent.avx512",
    recurrent Avx2 "recurrent.avx2",
    recurrent Neon "recurrent.neon",
    recurrent Portable "recurrent.portable",
});

/// Every variant of the gradient, best first.
pub(crate) static BACKWARD: CpuTable<GradientProblem<SsdProblem>> = CpuTable(variants! {
    "ssd_backward":
    backward Avx512 "recurrent.avx512",
    backward Avx2 "recurrent.avx2",
    backward Neon "recurrent.neon",
    backward Portable "recurrent.portable",
});
