//! Tensors in their storage type, chosen at run time: blocks are compiled once per instruction set, not once per type as well. Converting a
//! row is cheap compared with the work on it.
#![allow(unsafe_code)] // Vectors stored through raw pointers; blocks write disjoint parts of an output.

use crate::floats::narrow;
use crate::simd::{Simd, SimdKernel, dispatch};
use device::{Isa, SharedMut};
use half::{bf16, f16};
use ops::{DType, Element, Tensor};
use std::ops::Range;

/// An input.
#[derive(Clone, Copy)]
pub(crate) enum Stored<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
}

impl<'a> Stored<'a> {
    /// # Panics
    /// When the tensor has another type, which the contract refuses before.
    pub(crate) fn new(tensor: &'a Tensor) -> Self {
        match (tensor.view(), tensor.view(), tensor.view()) {
            (Some(values), _, _) => Self::F32(values),
            (_, Some(values), _) => Self::Bf16(values),
            (_, _, Some(values)) => Self::F16(values),
            _ => panic!("the contract let through a tensor of {}", tensor.dtype()),
        }
    }

    /// Adds the `to.len()` values from `start` on.
    #[inline(always)]
    pub(crate) fn add_to<S: Simd>(self, s: S, start: usize, to: &mut [f32]) {
        let range = start..start + to.len();
        match self {
            Self::F32(values) => {
                to.iter_mut().zip(&values[range]).for_each(|(to, x)| *to += x);
            }
            Self::F16(values) => {
                let mut wide = [0f32; 64];
                for (to, from) in to.chunks_mut(64).zip(values[range].chunks(64)) {
                    f16::widen(from, &mut wide[..from.len()]);
                    to.iter_mut().zip(&wide).for_each(|(to, x)| *to += x);
                }
            }
            Self::Bf16(values) => {
                let from = &values[range];
                let whole = to.len() / S::LANES * S::LANES;
                for at in (0..whole).step_by(S::LANES) {
                    // SAFETY: `at + LANES <= whole <= len` of both slices.
                    unsafe {
                        let to = to.as_mut_ptr().add(at);
                        s.store(to, s.add(s.load(to), s.load_bf16(from.as_ptr().add(at))));
                    }
                }
                for (to, from) in to[whole..].iter_mut().zip(&from[whole..]) {
                    *to += from.to_f32();
                }
            }
        }
    }

    /// Widens `to.len()` values from `start` on.
    #[inline(always)]
    pub(crate) fn widen<S: Simd>(self, s: S, start: usize, to: &mut [f32]) {
        let range = start..start + to.len();
        match self {
            Self::F32(values) => to.copy_from_slice(&values[range]),
            Self::F16(values) => f16::widen(&values[range], to),
            Self::Bf16(values) => {
                let from = &values[range];
                let whole = to.len() / S::LANES * S::LANES;
                for at in (0..whole).step_by(S::LANES) {
                    // SAFETY: `at + LANES <= whole <= len` of both slices.
                    unsafe { s.store(to.as_mut_ptr().add(at), s.load_bf16(from.as_ptr().add(at))) };
                }
                for (to, from) in to[whole..].iter_mut().zip(&from[whole..]) {
                    *to = from.to_f32();
                }
            }
        }
    }

    /// As [`Stored::widen`], as a call: the conversion's code is not repeated where it is used.
    #[inline(never)]
    pub(crate) fn read(self, isa: Isa, start: usize, to: &mut [f32]) {
        dispatch(isa, Read { from: self, start, to });
    }
}

struct Read<'a> {
    from: Stored<'a>,
    start: usize,
    to: &'a mut [f32],
}

impl SimdKernel for Read<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.from.widen(simd, self.start, self.to);
    }
}

/// An output; blocks write disjoint rows of it.
pub(crate) enum StoredMut<'a> {
    F32(SharedMut<'a, f32>),
    Bf16(SharedMut<'a, bf16>),
    F16(SharedMut<'a, f16>),
}

impl<'a> StoredMut<'a> {
    /// # Panics
    /// When the tensor has another type, which the contract refuses before.
    pub(crate) fn new(tensor: &'a mut Tensor) -> Self {
        let dtype = tensor.dtype();
        let shared = match dtype {
            DType::F32 => tensor.view_mut().map(|values| Self::F32(SharedMut::new(values))),
            DType::Bf16 => tensor.view_mut().map(|values| Self::Bf16(SharedMut::new(values))),
            DType::F16 => tensor.view_mut().map(|values| Self::F16(SharedMut::new(values))),
            _ => None,
        };
        match shared {
            Some(shared) => shared,
            None => panic!("the contract made an output of {dtype}"),
        }
    }

    /// Rounds a row to the storage type.
    ///
    /// # Safety
    /// No other block may touch the range.
    pub(crate) unsafe fn narrow(&self, range: Range<usize>, from: &[f32]) {
        // SAFETY: the caller's contract.
        unsafe {
            match self {
                Self::F32(values) => f32::narrow(from, values.slice(range)),
                Self::Bf16(values) => bf16::narrow(from, values.slice(range)),
                Self::F16(values) => f16::narrow(from, values.slice(range)),
            }
        }
    }

    /// As [`StoredMut::narrow`], by vectors of `isa`, from `start` on.
    ///
    /// # Safety
    /// No other block may touch the range.
    #[inline(never)]
    pub(crate) unsafe fn write(&self, isa: Isa, start: usize, from: &[f32]) {
        let to = start..start + from.len();
        match self {
            // SAFETY: the caller's contract.
            Self::F32(values) => unsafe { values.slice(to) }.copy_from_slice(from),
            // SAFETY: the caller's contract.
            Self::F16(values) => f16::narrow(from, unsafe { values.slice(to) }),
            // SAFETY: the caller's contract.
            Self::Bf16(values) => dispatch(isa, Write { from, to: unsafe { values.slice(to) } }),
        }
    }
}

struct Write<'a> {
    from: &'a [f32],
    to: &'a mut [bf16],
}

impl SimdKernel for Write<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        narrow(simd, self.from, self.to);
    }
}
