use super::{MoeProblem, experts};
use crate::Variant;
use device::Isa;
use facts::BackendKind;

/// The experts scheme for one instruction set.
macro_rules! experts {
    ($isa:ident, $name:literal) => {
        Variant {
            name: $name,
            backend: BackendKind::Cpu,
            why_not: |_, here| here.lacks(Isa::$isa),
            run: |problem, inputs, device, outputs| {
                let kernel = concat!("moe.", $name);
                experts::run(Isa::$isa, kernel, problem, inputs, device, outputs)
            },
        }
    };
}

/// Every variant, best first.
pub(super) static VARIANTS: &[Variant<MoeProblem>] = &[
    experts!(Avx512, "experts.avx512"),
    experts!(Avx2, "experts.avx2"),
    experts!(Neon, "experts.neon"),
    experts!(Portable, "experts.portable"),
];
