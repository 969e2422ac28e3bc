//! Sampling on the CPU.

mod exact;
mod row;

use crate::{CpuTable, CpuVariant};
use device::Isa;
use ops::sampling::SamplingProblem;

/// The bisection variant for one instruction set.
macro_rules! bisect {
    ($isa:ident, $name:literal) => {
        CpuVariant {
            name: $name,
            why_not: |_, here| here.lacks(Isa::$isa),
            run: |problem, inputs, device, outputs| {
                let kernel = concat!("sampling.", $name);
                row::run(Isa::$isa, kernel, problem, inputs, device, outputs)
            },
        }
    };
}

/// Every variant, best first.
pub(crate) static CPU: CpuTable<SamplingProblem> = CpuTable(&[
    bisect!(Avx512, "bisect.avx512"),
    bisect!(Avx2, "bisect.avx2"),
    bisect!(Neon, "bisect.neon"),
    bisect!(Portable, "bisect.portable"),
]);
