//! RMSNorm on the CPU.

mod rows;

use crate::{CpuTable, CpuVariant};
use device::Isa;
use ops::rmsnorm::RmsNormProblem;

/// The rows scheme for one instruction set.
macro_rules! rows {
    ($isa:ident, $name:literal) => {
        CpuVariant {
            name: $name,
            why_not: |_, here| here.lacks(Isa::$isa),
            run: |problem, inputs, device, outputs| {
                let kernel = concat!("rmsnorm.", $name);
                rows::run(Isa::$isa, kernel, problem, inputs, device, outputs)
            },
        }
    };
}

/// Every variant, best first.
pub(crate) static CPU: CpuTable<RmsNormProblem> = CpuTable(&[
    rows!(Avx512, "rows.avx512"),
    rows!(Avx2, "rows.avx2"),
    rows!(Neon, "rows.neon"),
    rows!(Portable, "rows.portable"),
]);
