use super::{KdaProblem, chunk, recurrent};
use crate::Variant;
use device::Isa;
use facts::BackendKind;

/// A variant of a scheme for one instruction set.
macro_rules! cpu {
    ($scheme:ident, $isa:ident, $name:literal) => {
        Variant {
            name: $name,
            backend: BackendKind::Cpu,
            why_not: |problem, here| {
                here.lacks(Isa::$isa).or_else(|| $scheme::why_not(problem, Isa::$isa))
            },
            run: |problem, inputs, device, outputs| {
                let kernel = concat!("kda.", $name);
                $scheme::run(Isa::$isa, kernel, problem, inputs, device, outputs)
            },
        }
    };
}

/// Every variant, best first.
pub(super) const VARIANTS: &[Variant<KdaProblem>] = &[
    cpu!(chunk, Avx512Bf16, "chunk.avx512bf16"),
    cpu!(chunk, Avx512, "chunk.avx512"),
    cpu!(recurrent, Avx512, "recurrent.avx512"),
    cpu!(chunk, Avx2, "chunk.avx2"),
    cpu!(recurrent, Avx2, "recurrent.avx2"),
    cpu!(chunk, Neon, "chunk.neon"),
    cpu!(recurrent, Neon, "recurrent.neon"),
    cpu!(chunk, Portable, "chunk.portable"),
    cpu!(recurrent, Portable, "recurrent.portable"),
];
