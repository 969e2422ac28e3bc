//! Register tiles of the two products with queries in lanes: S^T = K Q^T and O^T = V^T P^T.
//!
//! With queries in lanes neither K nor V is transposed: both are the operand that is broadcast value by value. See the
//! README for the layouts.
#![allow(unsafe_code)] // Register tiles read and write scratch through pointers.

use super::storage::Storage;
use crate::cpu::simd::Simd;
use std::marker::PhantomData;

/// Words of a key kept side by side in the key tile, which is `[chunks][keys][CHUNK]`: the distance between two keys is
/// a constant, and few keys fall into one set of the cache whatever the head dimension.
pub(super) const CHUNK: usize = 64;

/// How rows are staged and multiplied. Staged data are 32-bit words, kept as f32 whatever they hold.
pub(super) trait Products: 'static {
    /// Storage type of q, k, v and o.
    type Element: Storage;
    /// Values that one word holds along the depth of a product.
    const PER_WORD: usize;

    /// Copies `count` values of a row as words, the last one filled with zeros.
    ///
    /// # Safety
    /// `from` must be readable for `count` values, `to` writable for their words.
    unsafe fn stage<S: Simd>(s: S, from: *const Self::Element, count: usize, to: *mut f32);

    /// Copies [`Self::PER_WORD`] value rows of `count` channels as one row of words; a row that is missing is zero.
    ///
    /// # Safety
    /// Every row must be readable for `count` values, `to` writable for `count` words.
    unsafe fn stage_values<S: Simd>(s: S, rows: &[*const Self::Element], count: usize, to: *mut f32);

    /// Turns weights `[keys][width]` into words `[keys / PER_WORD][width]` in place; a key that is missing weighs 0.
    ///
    /// # Safety
    /// `weights` must be writable for `keys` rows, rounded up to whole words.
    unsafe fn weights<S: Simd>(s: S, weights: *mut f32, keys: usize, width: usize);

    /// `out[i][lane] = sum over t < words of keys[i][t] * q[t][lane]` for `ROWS` keys.
    ///
    /// # Safety
    /// `keys` must be readable for `ROWS` keys in each chunk of `words` (chunks lie `chunk_stride` apart), `q` for
    /// `words` rows, `out` writable for `ROWS` rows, of `VECTORS` vectors.
    unsafe fn scores<S: Simd, const ROWS: usize, const VECTORS: usize>(
        s: S,
        keys: *const f32,
        chunk_stride: usize,
        words: usize,
        q: *const f32,
        out: *mut f32,
    );

    /// `o[i][lane] = rescale[lane] * o[i][lane] + sum over t < words of values[t][i] * weights[t][lane]` for `ROWS`
    /// channels.
    ///
    /// # Safety
    /// `values` must be readable for `words` rows of `ROWS` words (`stride` apart), `weights` for `words` rows, `o`
    /// readable and writable for `ROWS` rows, of `VECTORS` vectors; `rescale` readable for one row.
    #[allow(clippy::too_many_arguments)] // One register tile's whole description, used in one place.
    unsafe fn outputs<S: Simd, const ROWS: usize, const VECTORS: usize>(
        s: S,
        values: *const f32,
        stride: usize,
        words: usize,
        weights: *const f32,
        rescale: *const f32,
        o: *mut f32,
    );
}

/// Products of values widened to f32.
pub(super) struct Widened<E>(PhantomData<E>);

impl<E: Storage> Products for Widened<E> {
    type Element = E;
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
