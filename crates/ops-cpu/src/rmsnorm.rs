//! RMSNorm on the CPU, and its gradient.

mod backward;
mod rows;

use crate::{CpuTable, CpuVariant};
use device::Isa;
use ops::GradientProblem;
use ops::rmsnorm::RmsNormProblem;

/// A module's code for one instruction set.
macro_rules! variant {
    ($op:literal, $module:ident, $isa:ident, $name:literal) => {
        CpuVariant {
            name: $name,
            why_not: |_, here| here.lacks(Isa::$isa),
            run: |problem, inputs, device, outputs| {
                let kernel = concat!($op, ".", $name);
                $module::run(Isa::$isa, kernel, problem, inputs, device, outputs)
            },
        }
    };
}

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
