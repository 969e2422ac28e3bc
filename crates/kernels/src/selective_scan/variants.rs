use super::{SelectiveScanProblem, channels, states};
use crate::{DType, Variant};
use device::Isa;
use facts::BackendKind;
use half::{bf16, f16};

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
                let kernel = concat!("selective_scan.", $name);
                let run = match problem.dtype {
                    DType::Bf16 => $scheme::run::<bf16>,
                    DType::F16 => $scheme::run::<f16>,
                    _ => $scheme::run::<f32>,
                };
                run(Isa::$isa, kernel, problem, inputs, device, outputs);
            },
        }
    };
}

/// Every variant, best first.
pub(super) const VARIANTS: &[Variant<SelectiveScanProblem>] = &[
    cpu!(channels, Avx512, "channels.avx512"),
    cpu!(channels, Avx2, "channels.avx2"),
    cpu!(channels, Neon, "channels.neon"),
    cpu!(channels, Portable, "channels.portable"),
    cpu!(states, Avx512, "states.avx512"),
    cpu!(states, Avx2, "states.avx2"),
    cpu!(states, Neon, "states.neon"),
    cpu!(states, Portable, "states.portable"),
];
