//! Conversion of rows between their storage type and float32.
#![allow(unsafe_code)] // Slices reinterpreted as the type that was checked at run time.

use crate::simd::Simd;
use half::{bf16, f16};
use ops::{DType, Element, Tensor, elements_mut};

/// Widens a row; bfloat16 by vectors, where `half` compiled for the baseline converts one element at a time.
///
/// # Panics
/// When the lengths differ.
#[inline(always)]
pub(crate) fn widen<S: Simd, E: Element>(simd: S, from: &[E], to: &mut [f32]) {
    if E::DTYPE != DType::Bf16 {
        return E::widen(from, to);
    }
    assert_eq!(from.len(), to.len(), "lengths of a conversion");
    let whole = from.len() / S::LANES * S::LANES;
    for at in (0..whole).step_by(S::LANES) {
        // SAFETY: E is bfloat16; `LANES` values from `at` on are inside both slices.
        unsafe {
            simd.store(to.as_mut_ptr().add(at), simd.load_bf16(from.as_ptr().add(at).cast()));
        }
    }
    E::widen(&from[whole..], &mut to[whole..]);
}

/// Rounds a row to nearest even; bfloat16 by integer arithmetic that the compiler turns into vectors of `S`.
///
/// # Panics
/// When the lengths differ.
#[inline(always)]
pub(crate) fn narrow<S: Simd, E: Element>(_: S, from: &[f32], to: &mut [E]) {
    if E::DTYPE != DType::Bf16 {
        return E::narrow(from, to);
    }
    assert_eq!(from.len(), to.len(), "lengths of a conversion");
    // SAFETY: E is bfloat16, which is one u16.
    let to = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<u16>(), to.len()) };
    for (to, from) in to.iter_mut().zip(from) {
        let bits = from.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        // A NaN whose payload is in the low half would round to infinity.
        let quiet = (bits >> 16) | 0x40;
        *to = if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded } as u16;
    }
}

/// Rounds float64 values to a tensor's type.
///
/// # Panics
/// When the lengths differ, or no op stores the type.
pub(crate) fn store(values: &[f64], to: &mut Tensor) {
    let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
    match to.dtype() {
        DType::Bf16 => bf16::narrow(&values, elements_mut(Some(to))),
        DType::F16 => f16::narrow(&values, elements_mut(Some(to))),
        _ => f32::narrow(&values, elements_mut(Some(to))),
    }
}

/// The elements without a copy, if they are float32.
pub(crate) fn as_f32<E: Element>(values: &[E]) -> Option<&[f32]> {
    if E::DTYPE != DType::F32 {
        return None;
    }
    // SAFETY: E is f32.
    Some(unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), values.len()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{SimdKernel, dispatch};
    use device::Isa;

    struct Convert<'a, E>(&'a [f32], &'a mut [E], &'a mut [f32]);

    impl<E: Element> SimdKernel for Convert<'_, E> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            narrow(simd, self.0, self.1);
            widen(simd, self.1, self.2);
        }
    }

    fn check<E: Element + PartialEq>(bits: &[u32]) {
        let from: Vec<f32> = bits.iter().map(|bits| f32::from_bits(*bits)).collect();
        let mut want = vec![E::default(); from.len()];
        E::narrow(&from, &mut want);
        let mut want_wide = vec![0f32; from.len()];
        E::widen(&want, &mut want_wide);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here()) {
            let (mut got, mut wide) = (vec![E::default(); from.len()], vec![0f32; from.len()]);
            dispatch(isa, Convert(&from, &mut got, &mut wide));
            for (at, (got, want)) in wide.iter().zip(&want_wide).enumerate() {
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(same, "{isa}: {:x} became {got:e}, wanted {want:e}", bits[at]);
            }
        }
    }

    #[test]
    fn rows_are_rounded_as_the_elements_are() {
        let mut bits: Vec<u32> = (0..200_003u32).map(|i| i.wrapping_mul(0x9e37_79b9)).collect();
        for high in 0..=0xffffu32 {
            bits.extend([0, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| high << 16 | low));
        }
        check::<f32>(&bits);
        check::<bf16>(&bits);
        check::<f16>(&bits);
    }
}
