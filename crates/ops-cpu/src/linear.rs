//! Linear projections on the CPU.

mod convolution;
mod strips;

use crate::{CpuTable, CpuVariant};
use device::Isa;
use ops::DType;
use ops::linear::LinearProblem;

/// The strips scheme for one instruction set.
macro_rules! strips {
    ($isa:ident, $name:literal, $why_not:expr) => {
        CpuVariant {
            name: $name,
            why_not: $why_not,
            run: |problem, inputs, device, outputs| {
                let kernel = concat!("linear.", $name);
                strips::run(Isa::$isa, kernel, problem, inputs, device, outputs)
            },
        }
    };
    ($isa:ident, $name:literal) => {
        strips!($isa, $name, |_, here| here.lacks(Isa::$isa))
    };
}

/// Every variant, best first.
pub(crate) static CPU: CpuTable<LinearProblem> = CpuTable(&[
    strips!(Avx512Bf16, "strips.avx512bf16", |problem, here| match problem.dtype {
        _ if problem.scales.is_some() =>
            Some(format!("needs bf16 weights, got {}", problem.w_dtype)),
        DType::Bf16 => here.lacks(Isa::Avx512Bf16),
        other => Some(format!("needs bf16 weights, got {other}")),
    }),
    strips!(Avx512, "strips.avx512"),
    strips!(Avx2, "strips.avx2"),
    strips!(Neon, "strips.neon"),
    strips!(Portable, "strips.portable"),
]);
