use super::{SamplingProblem, row};
use crate::Variant;
use device::Isa;
use facts::BackendKind;

/// The bisection for one instruction set.
macro_rules! bisect {
    ($isa:ident, $name:literal) => {
        Variant {
            name: $name,
            backend: BackendKind::Cpu,
            why_not: |_, here| here.lacks(Isa::$isa),
            run: |problem, inputs, device, outputs| {
                let kernel = concat!("sampling.", $name);
                row::run(Isa::$isa, kernel, problem, inputs, device, outputs)
            },
        }
    };
}

/// Every variant, best first.
pub(super) static VARIANTS: &[Variant<SamplingProblem>] = &[
    bisect!(Avx512, "bisect.avx512"),
    bisect!(Avx2, "bisect.avx2"),
    bisect!(Neon, "bisect.neon"),
    bisect!(Portable, "bisect.portable"),
];
