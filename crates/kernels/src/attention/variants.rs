use super::{AttentionProblem, flash};
use crate::{DType, Variant};
use device::Isa;
use facts::BackendKind;

/// The op's variants, best first.
pub(super) static VARIANTS: &[Variant<AttentionProblem>] = &[
    Variant {
        name: "flash.avx512bf16",
        backend: BackendKind::Cpu,
        why_not: |problem, here| match problem.dtype {
            DType::Bf16 => here.lacks(Isa::Avx512Bf16),
            other => Some(format!("needs bf16 tensors, got {other}")),
        },
        run: |problem, inputs, device, outputs| {
            flash::run(Isa::Avx512Bf16, problem, inputs, device, outputs);
        },
    },
    Variant {
        name: "flash.avx512",
        backend: BackendKind::Cpu,
        why_not: |_, here| here.lacks(Isa::Avx512),
        run: |problem, inputs, device, outputs| {
            flash::run(Isa::Avx512, problem, inputs, device, outputs);
        },
    },
    Variant {
        name: "flash.avx2",
        backend: BackendKind::Cpu,
        why_not: |_, here| here.lacks(Isa::Avx2),
        run: |problem, inputs, device, outputs| {
            flash::run(Isa::Avx2, problem, inputs, device, outputs);
        },
    },
    Variant {
        name: "flash.neon",
        backend: BackendKind::Cpu,
        why_not: |_, here| here.lacks(Isa::Neon),
        run: |problem, inputs, device, outputs| {
            flash::run(Isa::Neon, problem, inputs, device, outputs);
        },
    },
    Variant {
        name: "flash.portable",
        backend: BackendKind::Cpu,
        why_not: |_, here| here.lacks(Isa::Portable),
        run: |problem, inputs, device, outputs| {
            flash::run(Isa::Portable, problem, inputs, device, outputs);
        },
    },
];
