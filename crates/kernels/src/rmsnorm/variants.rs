use super::{RmsNormProblem, rows};
use crate::Variant;
use device::Isa;
use facts::BackendKind;

/// The rows scheme for one instruction set.
macro_rules! rows {
    ($isa:ident, $name:literal) => {
        Variant {
            name: $name,
            backend: BackendKind::Cpu,
            why_not: |_, here| here.lacks(Isa::$isa),
            run: |problem, inputs, device, outputs| {
                let kernel = concat!("rmsnorm.", $name);
                rows::run(Isa::$isa, kernel, problem, inputs, device, outputs)
            },
        }
    };
}

/// Every variant, best first.
pub(super) static VARIANTS: &[Variant<RmsNormProblem>] = &[
    rows!(Avx512, "rows.avx512"),
    rows!(Avx2, "rows.avx2"),
    rows!(Neon, "rows.neon"),
    rows!(Portable, "rows.portable"),
];
