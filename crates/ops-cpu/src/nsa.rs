//! Native sparse attention on the CPU.

mod blocked;

use crate::{CpuTable, CpuVariant};
use device::Isa;
use ops::DType;
use ops::nsa::NsaProblem;

/// The op's variants, best first.
pub(crate) static CPU: CpuTable<NsaProblem> = CpuTable(&[
    CpuVariant {
        name: "blocked.avx512bf16",
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
    CpuVariant {
        name: "blocked.avx512",
        why_not: |_, here| here.lacks(Isa::Avx512),
        run: |problem, inputs, device, outputs| {
            blocked::run(Isa::Avx512, problem, inputs, device, outputs);
        },
    },
    CpuVariant {
        name: "blocked.avx2",
        why_not: |_, here| here.lacks(Isa::Avx2),
        run: |problem, inputs, device, outputs| {
            blocked::run(Isa::Avx2, problem, inputs, device, outputs);
        },
    },
    CpuVariant {
        name: "blocked.neon",
        why_not: |_, here| here.lacks(Isa::Neon),
        run: |problem, inputs, device, outputs| {
            blocked::run(Isa::Neon, problem, inputs, device, outputs);
        },
    },
    CpuVariant {
        name: "blocked.portable",
        why_not: |_, here| here.lacks(Isa::Portable),
        run: |problem, inputs, device, outputs| {
            blocked::run(Isa::Portable, problem, inputs, device, outputs);
        },
    },
]);
