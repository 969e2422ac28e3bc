//! A variant of an op, and macros for variants that are a module's code, compiled for each instruction set, and for each storage type or not.

use device::{Capabilities, Device};
use ops::{Inputs, TensorMap};

/// One implementation of an op over tensors in host memory.
pub(crate) struct CpuVariant<P: 'static> {
    /// Name, unique within the op: `tiled.avx512`.
    pub(crate) name: &'static str,
    /// Why it cannot run this problem on this processor; `None` when it can.
    pub(crate) why_not: fn(&P, &Capabilities) -> Option<String>,
    /// Runs it. Its blocks go through [`Device::launch`] under the kernel name `<op>.<variant>`.
    pub(crate) run: fn(&P, Inputs<'_>, &Device, &mut TensorMap),
}

/// Lists variants, best first: each is the code of a module, compiled for one instruction set. The module has `why_not` for a problem
/// and `run` for any [`ops::Element`].
macro_rules! variants {
    ($op:literal: $($module:ident $isa:ident $name:literal,)*) => {
        &[$($crate::CpuVariant {
            name: $name,
            why_not: |problem, here| {
                here.lacks(device::Isa::$isa).or_else(|| $module::why_not(problem))
            },
            run: |problem, inputs, device, outputs| {
                let kernel = concat!($op, ".", $name);
                let run = match problem.dtype {
                    ops::DType::Bf16 => $module::run::<half::bf16>,
                    ops::DType::F16 => $module::run::<half::f16>,
                    _ => $module::run::<f32>,
                };
                run(device::Isa::$isa, kernel, problem, inputs, device, outputs);
            },
        }),*]
    };
}

/// A variant that supports every problem: the code of a module's `run`, which is not generic, for one instruction set.
macro_rules! variant {
    ($op:literal, $module:ident, $isa:ident, $name:literal) => {
        $crate::CpuVariant {
            name: $name,
            why_not: |_, here| here.lacks(device::Isa::$isa),
            run: |problem, inputs, device, outputs| {
                let kernel = concat!($op, ".", $name);
                $module::run(device::Isa::$isa, kernel, problem, inputs, device, outputs)
            },
        }
    };
}
pub(crate) use {variant, variants};
