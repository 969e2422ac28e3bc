//! Values of tensors as slices.

use crate::{DType, E4m3, Element, Tensor, U4Pair};
use half::{bf16, f16};
use std::borrow::Cow;

/// A tensor's values as float32: borrowed if they are float32, otherwise widened (exactly, for bf16 and f16). For small
/// tensors, such as scalars per head; kernels widen large ones tile by tile.
pub fn floats(tensor: &Tensor) -> Cow<'_, [f32]> {
    if let Some(values) = tensor.view::<f32>() {
        return Cow::Borrowed(values);
    }
    let mut wide = vec![0f32; tensor.len()];
    match tensor.dtype() {
        DType::Bf16 => bf16::widen(elements(tensor), &mut wide),
        DType::F16 => f16::widen(elements(tensor), &mut wide),
        DType::F64 => f64::widen(elements(tensor), &mut wide),
        DType::I32 => i32::widen(elements(tensor), &mut wide),
        DType::E4m3 => E4m3::widen(elements(tensor), &mut wide),
        DType::U4 => U4Pair::widen(elements(tensor), &mut wide),
        DType::I8 => i8::widen(elements(tensor), &mut wide),
        DType::U8 => u8::widen(elements(tensor), &mut wide),
        DType::F32 => {}
    }
    Cow::Owned(wide)
}

/// A tensor's elements, whose type the op's contract has already checked.
///
/// # Panics
/// When they have another type, which is a mistake of the contract.
pub fn elements<E: Element>(tensor: &Tensor) -> &[E] {
    match tensor.view::<E>() {
        Some(values) => values,
        None => panic!("a kernel for {} was given {}", E::DTYPE, tensor.dtype()),
    }
}

/// An output's elements for writing; see [`elements`].
///
/// # Panics
/// When there is no such output or it has another type, which is a mistake of the op.
pub fn elements_mut<E: Element>(tensor: Option<&mut Tensor>) -> &mut [E] {
    match tensor.and_then(E::view_mut) {
        Some(values) => values,
        None => panic!("a kernel has no output of type {}", E::DTYPE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_widened_exactly() {
        let exact = Tensor::new(&[3], vec![1.0f64, -2.5, 0.15625]);
        for dtype in [DType::F64, DType::F32, DType::Bf16, DType::F16] {
            assert_eq!(*floats(&exact.cast(dtype)), [1.0, -2.5, 0.15625], "{dtype}");
        }
    }
}
