//! The depthwise causal convolution on the CPU.

mod direct;

use crate::CpuTable;
use crate::variants::variants;
use ops::conv1d::Conv1dProblem;

/// Every variant, best first.
pub(crate) static CPU: CpuTable<Conv1dProblem> = CpuTable(variants! {
    "conv1d":
    direct Avx512 "direct.avx512",
    direct Avx2 "direct.avx2",
    direct Neon "direct.neon",
    direct Portable "direct.portable",
});
