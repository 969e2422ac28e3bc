//! Products of bfloat16 pairs: channels d, d + 1 of queries and keys; keys j, j + 1 of values and weights.
#![allow(unsafe_code)] // Intrinsics, and rows read through pointers.

use super::super::scheme::Pairs;
use super::products::{KEYS, Products};
use super::reduce;
use super::rows::Rows;
use crate::simd::Simd;
use half::bf16;
use std::arch::x86_64::*;

impl Products for Pairs {
    #[inline(always)]
    unsafe fn stage<S: Simd>(_: S, from: *const bf16, dim: usize, to: *mut f32) {
        // SAFETY: the caller's contract: half of the words are enough.
        unsafe { std::ptr::copy_nonoverlapping(from, to.cast::<bf16>(), dim) };
    }

    #[inline(always)]
    unsafe fn scores<S: Simd, const ROWS: usize, const SIDE: usize>(
        _: S,
        keys: [&Rows<bf16>; 2],
        dim: usize,
        q: (*const f32, usize),
        _: *mut f32,
        to: *mut f32,
    ) {
        // SAFETY: the caller's contract; the processor has the instructions (see `Pairs`).
        unsafe { scores::<ROWS, SIDE>(keys, dim, q, to) }
    }

    #[inline(always)]
    unsafe fn outputs<S: Simd, const ROWS: usize, const SIDE: usize>(
        _: S,
        values: [&Rows<bf16>; 2],
        dim: usize,
        weights: *mut f32,
        rescale: &[f32; ROWS],
        _: *mut f32,
        (o, stride): (*mut f32, usize),
    ) {
        // SAFETY: as above.
        unsafe {
            round::<ROWS>(weights);
            let mut at = 0;
            while at + SIDE * 16 <= dim {
                outputs::<ROWS, SIDE>(values, [at, 16, dim], weights, rescale, (o.add(at), stride));
                at += SIDE * 16;
            }
            while at < dim {
                let count = 16.min(dim - at);
                outputs::<ROWS, 1>(values, [at, count, dim], weights, rescale, (o.add(at), stride));
                at += 16;
            }
        }
    }
}

/// `sum + a . b` pair by pair.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn dot(sum: __m512, a: __m512i, b: __m512i) -> __m512 {
    // SAFETY: the types are 512 bits of pairs either way.
    unsafe {
        _mm512_dpbf16_ps(
            sum,
            std::mem::transmute::<__m512i, __m512bh>(a),
            std::mem::transmute::<__m512i, __m512bh>(b),
        )
    }
}

/// # Safety
/// As [`Products::scores`]; the processor must have AVX512-BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn scores<const ROWS: usize, const SIDE: usize>(
    [keys, next]: [&Rows<bf16>; 2],
    dim: usize,
    (q, stride): (*const f32, usize),
    to: *mut f32,
) {
    let whole = dim - dim % 32;
    let last: __mmask32 = (1 << (dim % 32)) - 1;
    for first in (0..keys.count).step_by(SIDE) {
        let mut sums = [[_mm512_setzero_ps(); ROWS]; SIDE];
        // Past the last key the last one is read again; its score means nothing.
        let mut at = [keys.at[first]; SIDE];
        for (i, at) in at.iter_mut().enumerate() {
            next.prefetch(first + i, dim);
            *at = keys.at[(first + i).min(keys.count - 1)];
        }
        // SAFETY: the caller's contract; the mask keeps the last load inside the row.
        unsafe {
            for d in (0..whole).step_by(32) {
                for (sums, at) in sums.iter_mut().zip(at) {
                    let k = _mm512_loadu_si512(at.add(d).cast());
                    for (r, sum) in sums.iter_mut().enumerate() {
                        *sum = dot(*sum, k, _mm512_loadu_si512(q.add(r * stride + d / 2).cast()));
                    }
                }
            }
            if whole < dim {
                for (sums, at) in sums.iter_mut().zip(at) {
                    let k = _mm512_maskz_loadu_epi16(last, at.add(whole).cast());
                    for (r, sum) in sums.iter_mut().enumerate() {
                        *sum =
                            dot(*sum, k, _mm512_loadu_si512(q.add(r * stride + whole / 2).cast()));
                    }
                }
            }
            let mut flat = [_mm512_setzero_ps(); 16];
            for (i, sums) in sums.iter().enumerate() {
                for (r, sum) in sums.iter().enumerate() {
                    flat[r * SIDE + i] = *sum;
                }
            }
            let mut totals = [0.0f32; 16];
            _mm512_storeu_ps(totals.as_mut_ptr(), reduce::sum16(&flat));
            for r in 0..ROWS {
                let to = to.add(r * KEYS + first);
                std::ptr::copy_nonoverlapping(totals.as_ptr().add(r * SIDE), to, SIDE);
            }
        }
    }
}

/// Rounds weights [ROWS][KEYS] to pairs, in the first half of each row.
///
/// # Safety
/// `weights` must be writable for [ROWS][KEYS]; the processor must have AVX512-BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn round<const ROWS: usize>(weights: *mut f32) {
    const { assert!(KEYS == 32) };
    for r in 0..ROWS {
        // SAFETY: the caller's contract.
        unsafe {
            let row = weights.add(r * KEYS);
            let pairs = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(row.add(16)), _mm512_loadu_ps(row));
            _mm512_storeu_si512(row.cast(), std::mem::transmute::<__m512bh, __m512i>(pairs));
        }
    }
}

/// [`Products::outputs`] for `VECTORS` vectors of channels from `at` on (of `dim`), the last one of `count` lanes.
///
/// # Safety
/// As there; the processor must have AVX512-BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn outputs<const ROWS: usize, const VECTORS: usize>(
    [values, next]: [&Rows<bf16>; 2],
    [at, count, dim]: [usize; 3],
    weights: *const f32,
    rescale: &[f32; ROWS],
    (o, stride): (*mut f32, usize),
) {
    let lanes: __mmask16 = if count == 16 { 0xffff } else { (1 << count) - 1 };
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
    // SAFETY: the caller's contract; the mask keeps loads inside the rows.
    unsafe {
        for (r, sums) in sums.iter_mut().enumerate() {
            for (i, sum) in sums.iter_mut().enumerate() {
                let before = _mm512_loadu_ps(o.add(r * stride + i * 16));
                *sum = _mm512_mul_ps(before, _mm512_set1_ps(rescale[r]));
            }
        }
        for j in (0..values.count).step_by(2) {
            if at == 0 {
                next.prefetch(j, dim);
                next.prefetch(j + 1, dim);
            }
            // An odd last key is paired with itself; the second weight is zero.
            let (even, odd) = (values.at[j], values.at[(j + 1).min(values.count - 1)]);
            let mut v = [_mm512_setzero_si512(); VECTORS];
            for (i, v) in v.iter_mut().enumerate() {
                let load = |row: *const bf16| {
                    _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(
                        lanes,
                        row.add(at + i * 16).cast(),
                    ))
                };
                *v = _mm512_or_si512(load(even), _mm512_slli_epi32::<16>(load(odd)));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let pair = _mm512_set1_epi32(weights.add(r * KEYS + j / 2).cast::<i32>().read());
                for (sum, v) in sums.iter_mut().zip(v) {
                    *sum = dot(*sum, pair, v);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (i, sum) in sums.iter().enumerate() {
                _mm512_storeu_ps(o.add(r * stride + i * 16), *sum);
            }
        }
    }
}
