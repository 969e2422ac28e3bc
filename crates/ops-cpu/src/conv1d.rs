//! The depthwise causal convolution on the CPU, and its gradient.

mod direct;

use crate::CpuTable;
use crate::variants::{variant, variants};
use direct::backward;
use ops::GradientProblem;
use ops::conv1d::Conv1dProblem;

/// Every variant, best first.
pub(crate) static CPU: CpuTable<Conv1dProblem> = CpuTable(variants! {
    "conv1d":
    direct Avx512 "direct.avx512",
    direct Avx2 "direct.avx2",
    direct Neon "direct.neon",
    direct Portable "direct.portable",
});

/// Every variant of the gradient, best first.
pub(crate) static BACKWARD: CpuTable<GradientProblem<Conv1dProblem>> = CpuTable(&[
    variant!("conv1d_backward", backward, Avx512, "direct.avx512"),
    variant!("conv1d_backward", backward, Avx2, "direct.avx2"),
    variant!("conv1d_backward", backward, Neon, "direct.neon"),
    variant!("conv1d_backward", backward, Portable, "direct.portable"),
]);
