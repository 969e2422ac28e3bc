use super::{NsaProblem, blocked};
use crate::{DType, Variant};
use device::Isa;
use facts::BackendKind;

/// The op's variants, best first.
pub(super) static VARIANTS: &[Variant<NsaProblem>] = &[
    Variant {
        name: "blocked.avx512bf16",
        backend: BackendKind::Cpu,
        why_not: |problem, here| {
            here.lacks(Isa::Avx512Bf16).or_else(|| {
                (problem.dtype != DType::Bf16)
                    .then(|| format!("needs bf16 tensors, got {}", problem.dtype))
            })
        },
        run: |problem, inputs, device, outputs| {
            blocked::run(Isa::Avx512Bf16, problem, inputs, device, outputs);
        },
    },
    Variant {
        name: "blocked.avx512",
        backend: BackendKind::Cpu,
        why_not: |_, here| here.lacks(Isa::Avx512),
        run: |problem, inputs, device, outputs| {
            blocked::run(Isa::Avx512, problem, inputs, device, outputs);
        },
    },
    Variant {
        name: "blocked.avx2",
        backend: BackendKind::Cpu,
        why_not: |_, here| here.lacks(Isa::Avx2),
        run: |problem, inputs, device, outputs| {
            blocked::run(Isa::Avx2, problem, inputs, device, outputs);
        },
    },
    Variant {
        name: "blocked.neon",
        backend: BackendKind::Cpu,
        why_not: |_, here| here.lacks(Isa::Neon),
        run: |problem, inputs, device, outputs| {
            blocked::run(Isa::Neon, problem, inputs, device, outputs);
        },
    },
    Variant {
        name: "blocked.portable",
        backend: BackendKind::Cpu,
        why_not: |_, here| here.lacks(Isa::Portable),
        run: |problem, inputs, device, outputs| {
            blocked::run(Isa::Portable, problem, inputs, device, outputs);
        },
    },
];
