//! Products of bfloat16 pairs by the AVX512-BF16 dot product, summed in f32.
//!
//! A word holds two neighbours along the depth: channels d, d + 1 of a query or key; keys j, j + 1 of a channel's
//! values and of a query's weights, which are rounded to bfloat16.
#![allow(unsafe_code)] // Intrinsics, and tiles reached through pointers.

use super::super::scheme::Pairs;
use super::products::{CHUNK, Products};
use crate::simd::Simd;
use half::bf16;
use std::arch::x86_64::*;

impl Products for Pairs {
    const PER_WORD: usize = 2;

    #[inline(always)]
    unsafe fn stage<S: Simd>(_: S, from: *const bf16, count: usize, to: *mut f32) {
        // Pairs along the channels are neighbours already.
        // SAFETY: the caller's contract.
        unsafe {
            let to = to.cast::<bf16>();
            if count % 2 == 1 {
                to.add(count).write(bf16::ZERO);
            }
            std::ptr::copy_nonoverlapping(from, to, count);
        }
    }

    #[inline(always)]
    unsafe fn stage_values<S: Simd>(_: S, rows: &[*const bf16], count: usize, to: *mut f32) {
        // SAFETY: the caller's contract; the processor has the instructions (see `Pairs`).
        unsafe { interleave(rows, count, to) }
    }

    #[inline(always)]
    unsafe fn weights<S: Simd>(_: S, weights: *mut f32, keys: usize, width: usize) {
        // SAFETY: as above.
        unsafe { round(weights, keys, width) }
    }

    #[inline(always)]
    unsafe fn scores<S: Simd, const ROWS: usize, const VECTORS: usize>(
        _: S,
        keys: *const f32,
        chunk_stride: usize,
        words: usize,
        q: *const f32,
        out: *mut f32,
    ) {
        // SAFETY: as above.
        unsafe { scores::<ROWS, VECTORS>(keys, chunk_stride, words, q, out) }
    }

    #[inline(always)]
    unsafe fn outputs<S: Simd, const ROWS: usize, const VECTORS: usize>(
        _: S,
        values: *const f32,
        stride: usize,
        words: usize,
        weights: *const f32,
        rescale: *const f32,
        o: *mut f32,
    ) {
        // SAFETY: as above.
        unsafe { outputs::<ROWS, VECTORS>(values, stride, words, weights, rescale, o) }
    }
}

/// The first `left` of 16 lanes.
fn first(left: usize) -> __mmask16 {
    if left >= 16 { 0xffff } else { (1 << left) - 1 }
}

/// One or two rows of `count` values as one row of words; a missing row is zero.
///
/// # Safety
/// The processor must have AVX512-BF16; rows must be readable for `count` values, `to` writable for `count` words.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn interleave(rows: &[*const bf16], count: usize, to: *mut f32) {
    let even = rows[0];
    let Some(odd) = rows.get(1) else {
        for at in (0..count).step_by(16) {
            let mask = first(count - at);
            // SAFETY: the mask keeps load and store inside the rows.
            unsafe {
                let words =
                    _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, even.add(at).cast()));
                _mm512_mask_storeu_epi32(to.add(at).cast(), mask, words);
            }
        }
        return;
    };
    // Indices 0, 32, 1, 33, ... of both rows together, and the same for their second halves.
    let mut indices = [[0u16; 32]; 2];
    for (half, indices) in (0u16..).zip(&mut indices) {
        for (index, entry) in (0u16..).zip(indices) {
            *entry = half * 16 + index / 2 + index % 2 * 32;
        }
    }
    // SAFETY: masks keep loads and stores inside the rows.
    unsafe {
        let low = _mm512_loadu_si512(indices[0].as_ptr().cast());
        let high = _mm512_loadu_si512(indices[1].as_ptr().cast());
        for at in (0..count).step_by(32) {
            let left = count - at;
            let mask = if left >= 32 { u32::MAX } else { (1 << left) - 1 };
            let a = _mm512_maskz_loadu_epi16(mask, even.add(at).cast());
            let b = _mm512_maskz_loadu_epi16(mask, odd.add(at).cast());
            let to = to.add(at);
            let (first_half, second_half) = (first(left), first(left.saturating_sub(16)));
            _mm512_mask_storeu_epi32(to.cast(), first_half, _mm512_permutex2var_epi16(a, low, b));
            let words = _mm512_permutex2var_epi16(a, high, b);
            _mm512_mask_storeu_epi32(to.wrapping_add(16).cast(), second_half, words);
        }
    }
}

/// Weights [keys][width] as words [ceil(keys / 2)][width] in place, rounded to nearest even.
///
/// # Safety
/// The processor must have AVX512-BF16; `weights` must be writable for `keys` rows of `width`, a multiple of 16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn round(weights: *mut f32, keys: usize, width: usize) {
    // Indices 0, 16, 1, 17, ...: interleaves the two halves of the conversion's result.
    let mut indices = [0u16; 32];
    for (entry, index) in indices.iter_mut().zip(0u16..) {
        *entry = index / 2 + index % 2 * 16;
    }
    // SAFETY: the caller's contract. A word row is written after both rows it comes from were read.
    unsafe {
        let indices = _mm512_loadu_si512(indices.as_ptr().cast());
        for j in (0..keys).step_by(2) {
            for lane in (0..width).step_by(16) {
                let even = _mm512_loadu_ps(weights.add(j * width + lane));
                let odd = match j + 1 < keys {
                    true => _mm512_loadu_ps(weights.add((j + 1) * width + lane)),
                    false => _mm512_setzero_ps(),
                };
                let halves: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(odd, even));
                let words = _mm512_permutexvar_epi16(indices, halves);
                _mm512_storeu_si512(weights.add(j / 2 * width + lane).cast(), words);
            }
        }
    }
}

/// `sum + a . b` pair by pair, with one pair `a` for all lanes.
///
/// # Safety
/// `a` must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn dot(sum: __m512, a: *const f32, b: __m512i) -> __m512 {
    // SAFETY: the caller's contract; the types are 512 bits of pairs either way.
    unsafe {
        let a = _mm512_set1_epi32(a.cast::<i32>().read());
        _mm512_dpbf16_ps(
            sum,
            std::mem::transmute::<__m512i, __m512bh>(a),
            std::mem::transmute::<__m512i, __m512bh>(b),
        )
    }
}

/// [`Products::scores`] over pairs.
///
/// # Safety
/// As there, and the processor must have AVX512-BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn scores<const ROWS: usize, const VECTORS: usize>(
    mut keys: *const f32,
    chunk_stride: usize,
    words: usize,
    mut q: *const f32,
    out: *mut f32,
) {
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
    let mut left = words;
    // SAFETY: the caller's contract.
    unsafe {
        while left > 0 {
            let count = left.min(CHUNK);
            for t in 0..count {
                let mut b = [_mm512_setzero_si512(); VECTORS];
                for (v, b) in b.iter_mut().enumerate() {
                    *b = _mm512_loadu_si512(q.add(v * 16).cast());
                }
                for (i, sums) in sums.iter_mut().enumerate() {
                    for (sum, b) in sums.iter_mut().zip(b) {
                        *sum = dot(*sum, keys.add(i * CHUNK + t), b);
                    }
                }
                q = q.add(VECTORS * 16);
            }
            keys = keys.add(chunk_stride);
            left -= count;
        }
        for (i, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                _mm512_storeu_ps(out.add((i * VECTORS + v) * 16), *sum);
            }
        }
    }
}

/// [`Products::outputs`] over pairs.
///
/// # Safety
/// As there, and the processor must have AVX512-BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn outputs<const ROWS: usize, const VECTORS: usize>(
    mut values: *const f32,
    stride: usize,
    words: usize,
    mut weights: *const f32,
    rescale: *const f32,
    o: *mut f32,
) {
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
    // SAFETY: the caller's contract.
    unsafe {
        for _ in 0..words {
            let mut b = [_mm512_setzero_si512(); VECTORS];
            for (v, b) in b.iter_mut().enumerate() {
                *b = _mm512_loadu_si512(weights.add(v * 16).cast());
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = dot(*sum, values.add(i), b);
                }
            }
            values = values.add(stride);
            weights = weights.add(VECTORS * 16);
        }
        for (i, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                let at = o.add((i * VECTORS + v) * 16);
                let scale = _mm512_loadu_ps(rescale.add(v * 16));
                _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_loadu_ps(at), scale, *sum));
            }
        }
    }
}
