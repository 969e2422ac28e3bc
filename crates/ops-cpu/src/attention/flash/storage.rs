#![allow(unsafe_code)] // Rows are read through pointers so that kernels may read them by vectors.

use crate::simd::Simd;
use half::{bf16, f16};
use ops::Element;

/// Element types of rows that kernels read.
pub(super) trait Storage: Element {
    /// Whether [`Storage::load`] loads and widens a vector cheaply; otherwise whole rows are widened first.
    const LOADS: bool;

    /// `S::LANES` values, widened.
    ///
    /// # Safety
    /// `from` must be readable for `S::LANES` values.
    unsafe fn load<S: Simd>(s: S, from: *const Self) -> S::V;

    /// The first `count` lanes from memory, the others zero.
    ///
    /// # Safety
    /// `from` must be readable for `count` values, `count <= S::LANES`.
    #[inline(always)]
    unsafe fn load_first<S: Simd>(s: S, from: *const Self, count: usize) -> S::V {
        debug_assert!(count <= S::LANES && S::LANES <= 16);
        let mut lanes = [Self::default(); 16];
        // SAFETY: the caller's contract.
        unsafe {
            std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), count);
            Self::load(s, lanes.as_ptr())
        }
    }

    /// Widens `count` values.
    ///
    /// # Safety
    /// `from` must be readable and `to` writable for `count` values.
    #[inline(always)]
    unsafe fn widen_row<S: Simd>(s: S, from: *const Self, to: *mut f32, count: usize) {
        let whole = count - count % S::LANES;
        // SAFETY: the caller's contract.
        unsafe {
            for at in (0..whole).step_by(S::LANES) {
                s.store(to.add(at), Self::load(s, from.add(at)));
            }
            if whole < count {
                let tail = Self::load_first(s, from.add(whole), count - whole);
                s.store_first(to.add(whole), tail, count - whole);
            }
        }
    }
}

impl Storage for f32 {
    const LOADS: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const f32) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { s.load(from) }
    }

    #[inline(always)]
    unsafe fn load_first<S: Simd>(s: S, from: *const f32, count: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { s.load_first(from, count) }
    }
}

impl Storage for bf16 {
    const LOADS: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const bf16) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { s.load_bf16(from) }
    }
}

impl Storage for f16 {
    // The vectors have no f16 load; `half` widens slices with the processor's conversion, which pays by whole rows.
    const LOADS: bool = false;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const f16) -> S::V {
        let mut lanes = [0.0; 16];
        // SAFETY: the caller's contract; no vector has more than 16 lanes.
        unsafe {
            f16::widen(std::slice::from_raw_parts(from, S::LANES), &mut lanes[..S::LANES]);
            s.load(lanes.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn widen_row<S: Simd>(_: S, from: *const f16, to: *mut f32, count: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            let from = std::slice::from_raw_parts(from, count);
            f16::widen(from, std::slice::from_raw_parts_mut(to, count));
        }
    }
}
