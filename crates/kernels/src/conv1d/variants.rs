use super::{Conv1dProblem, direct};
use crate::Variant;
use device::Isa;
use facts::BackendKind;

/// The direct scheme for one instruction set.
macro_rules! direct {
    ($isa:ident, $name:literal) => {
        Variant {
            name: $name,
            backend: BackendKind::Cpu,
            why_not: |_, here| here.lacks(Isa::$isa),
            run: |problem, inputs, device, outputs| {
                let kernel = concat!("conv1d.", $name);
                direct::run(Isa::$isa, kernel, problem, inputs, device, outputs)
            },
        }
    };
}

/// Every variant, best first.
pub(super) const VARIANTS: &[Variant<Conv1dProblem>] = &[
    direct!(Avx512, "direct.avx512"),
    direct!(Avx2, "direct.avx2"),
    direct!(Neon, "direct.neon"),
    direct!(Portable, "direct.portable"),
];
