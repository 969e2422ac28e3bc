//! The variants of an op whose schemes are written once for all instruction sets and storage types.

/// Variants over host memory, best first: each a scheme for one instruction set. A scheme says `why_not` of a problem, and has a `run`
/// for any [`crate::Element`].
macro_rules! variants {
    ($op:literal: $($scheme:ident $isa:ident $name:literal,)*) => {
        &[$($crate::Variant {
            name: $name,
            backend: facts::BackendKind::Cpu,
            why_not: |problem, here| {
                here.lacks(device::Isa::$isa).or_else(|| $scheme::why_not(problem))
            },
            run: |problem, inputs, device, outputs| {
                let kernel = concat!($op, ".", $name);
                let run = match problem.dtype {
                    $crate::DType::Bf16 => $scheme::run::<half::bf16>,
                    $crate::DType::F16 => $scheme::run::<half::f16>,
                    _ => $scheme::run::<f32>,
                };
                run(device::Isa::$isa, kernel, problem, inputs, device, outputs);
            },
        }),*]
    };
}
pub(crate) use variants;
