#![allow(unsafe_code)] // Register tiles read and write scratch through pointers.

use super::super::scheme::Widened;
use super::super::storage::Storage;
use super::products::{CHUNK, Products};
use crate::simd::Simd;

impl<E: Storage> Products for Widened<E> {
    const PER_WORD: usize = 1;

    #[inline(always)]
    unsafe fn stage<S: Simd>(s: S, from: *const E, count: usize, to: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { E::widen_row(s, from, to, count) }
    }

    #[inline(always)]
    unsafe fn stage_values<S: Simd>(s: S, rows: &[*const E], count: usize, to: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { E::widen_row(s, rows[0], to, count) }
    }

    #[inline(always)]
    unsafe fn weights<S: Simd>(_: S, _: *mut f32, _: usize, _: usize) {}

    #[inline(always)]
    unsafe fn scores<S: Simd, const ROWS: usize, const VECTORS: usize>(
        s: S,
        mut keys: *const f32,
        chunk_stride: usize,
        words: usize,
        mut q: *const f32,
        out: *mut f32,
    ) {
        let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
        let mut left = words;
        // SAFETY: the caller's contract.
        unsafe {
            while left > 0 {
                let count = left.min(CHUNK);
                for t in 0..count {
                    let mut b = [s.splat(0.0); VECTORS];
                    for (v, b) in b.iter_mut().enumerate() {
                        *b = s.load(q.add(v * S::LANES));
                    }
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let a = s.splat(*keys.add(i * CHUNK + t));
                        for (sum, b) in sums.iter_mut().zip(b) {
                            *sum = s.fma(a, b, *sum);
                        }
                    }
                    q = q.add(VECTORS * S::LANES);
                }
                keys = keys.add(chunk_stride);
                left -= count;
            }
            for (i, sums) in sums.iter().enumerate() {
                for (v, sum) in sums.iter().enumerate() {
                    s.store(out.add((i * VECTORS + v) * S::LANES), *sum);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn outputs<S: Simd, const ROWS: usize, const VECTORS: usize>(
        s: S,
        mut values: *const f32,
        stride: usize,
        words: usize,
        mut weights: *const f32,
        rescale: *const f32,
        o: *mut f32,
    ) {
        let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
        // SAFETY: the caller's contract.
        unsafe {
            for _ in 0..words {
                let mut b = [s.splat(0.0); VECTORS];
                for (v, b) in b.iter_mut().enumerate() {
                    *b = s.load(weights.add(v * S::LANES));
                }
                for (i, sums) in sums.iter_mut().enumerate() {
                    let a = s.splat(*values.add(i));
                    for (sum, b) in sums.iter_mut().zip(b) {
                        *sum = s.fma(a, b, *sum);
                    }
                }
                values = values.add(stride);
                weights = weights.add(VECTORS * S::LANES);
            }
            for (i, sums) in sums.iter().enumerate() {
                for (v, sum) in sums.iter().enumerate() {
                    let at = o.add((i * VECTORS + v) * S::LANES);
                    s.store(at, s.fma(s.load(at), s.load(rescale.add(v * S::LANES)), *sum));
                }
            }
        }
    }
}
