//! Mixture of experts on the CPU.

mod experts;
mod route;

use crate::{CpuTable, CpuVariant};
use device::Isa;
use ops::moe::MoeProblem;

/// The experts scheme for one instruction set.
macro_rules! experts {
    ($isa:ident, $name:literal) => {
        CpuVariant {
            name: $name,
            why_not: |_, here| here.lacks(Isa::$isa),
            run: |problem, inputs, device, outputs| {
                let kernel = concat!("moe.", $name);
                experts::run(Isa::$isa, kernel, problem, inputs, device, outputs)
            },
        }
    };
}

/// Every variant, best first.
pub(crate) static CPU: CpuTable<MoeProblem> = CpuTable(&[
    experts!(Avx512, "experts.avx512"),
    experts!(Avx2, "experts.avx2"),
    experts!(Neon, "experts.neon"),
    experts!(Portable, "experts.portable"),
]);
