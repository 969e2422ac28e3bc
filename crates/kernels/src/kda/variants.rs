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
    // No `chunk` for Avx512Bf16: with beta = 2 and no decay its rounded products put the state 7e-3 off, over the
    // table's 5e-3, and beta is data that a refusal cannot see.
    cpu!(chunk, Avx512, "chunk.avx512"),
    cpu!(recurrent, Avx512, "recurrent.avx512"),
    cpu!(chunk, Avx2, "chunk.avx2"),
    cpu!(recurrent, Avx2, "recurrent.avx2"),
    cpu!(chunk, Neon, "chunk.neon"),
    cpu!(recurrent, Neon, "recurrent.neon"),
    cpu!(chunk, Portable, "chunk.portable"),
    cpu!(recurrent, Portable, "recurrent.portable"),
];
