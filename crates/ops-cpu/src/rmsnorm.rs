//! RMSNorm on the CPU, and its gradient.

mod backward;
mod rows;

use crate::CpuTable;
use crate::variants::variant;
use ops::GradientProblem;
use ops::rmsnorm::RmsNormProblem;

/// Every variant, best first.
pub(crate) static CPU: CpuTable<RmsNormProblem> = CpuTable(&[
    variant!("rmsnorm", rows, Avx512, "rows.avx512"),
    variant!("rmsnorm", rows, Avx2, "rows.avx2"),
    variant!("rmsnorm", rows, Neon, "rows.neon"),
    variant!("rmsnorm", rows, Portable, "rows.portable"),
]);

/// Every variant of the gradient, best first.
pub(crate) static BACKWARD: CpuTable<GradientProblem<RmsNormProblem>> = CpuTable(&[
    variant!("rmsnorm_backward", backward, Avx512, "rows.avx512"),
    variant!("rmsnorm_backward", backward, Avx2, "rows.avx2"),
    variant!("rmsnorm_backward", backward, Neon, "rows.neon"),
    variant!("rmsnorm_backward", backward, Portable, "rows.portable"),
]);
