//! Softmax attention on the CPU, and its gradient.

mod backward;
mod flash;

use crate::variants::variants;
use crate::{CpuTable, CpuVariant};
use device::Isa;
use ops::attention::AttentionProblem;
use ops::{DType, GradientProblem};

/// The op's variants, best first.
pub(crate) static CPU: CpuTable<AttentionProblem> = CpuTable(&[
    CpuVariant {
        name: "flash.avx512bf16",
        why_not: |problem, here| match problem.dtype {
            DType::Bf16 => here.lacks(Isa::Avx512Bf16),
            other => Some(format!("needs bf16 tensors, got {other}")),
        },
        run: |problem, inputs, device, outputs| {
            flash::run(Isa::Avx512Bf16, problem, inputs, device, outputs);
        },
    },
    CpuVariant {
        name: "flash.avx512",
        why_not: |_, here| here.lacks(Isa::Avx512),
        run: |problem, inputs, device, outputs| {
            flash::run(Isa::Avx512, problem, inputs, device, outputs);
        },
    },
    CpuVariant {
        name: "flash.avx2",
        why_not: |_, here| here.lacks(Isa::Avx2),
        run: |problem, inputs, device, outputs| {
            flash::run(Isa::Avx2, problem, inputs, device, outputs);
        },
    },
    CpuVariant {
        name: "flash.neon",
        why_not: |_, here| here.lacks(Isa::Neon),
        run: |problem, inputs, device, outputs| {
            flash::run(Isa::Neon, problem, inputs, device, outputs);
        },
    },
    CpuVariant {
        name: "flash.portable",
        why_not: |_, here| here.lacks(Isa::Portable),
        run: |problem, inputs, device, outputs| {
            flash::run(Isa::Portable, problem, inputs, device, outputs);
        },
    },
]);

/// Every variant of the gradient, best first.
pub(crate) static BACKWARD: CpuTable<GradientProblem<AttentionProblem>> =
    CpuTable(variants!("attention_backward":
        backward Avx512 "tiles.avx512",
        backward Avx2 "tiles.avx2",
        backward Neon "tiles.neon",
        backward Portable "tiles.portable",
    ));
