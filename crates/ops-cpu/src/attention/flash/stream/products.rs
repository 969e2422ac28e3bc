#![allow(unsafe_code)] // Rows are read through pointers, ahead of use.

use super::super::scheme::Scheme;
use super::rows::Rows;
use crate::simd::Simd;

/// Keys of a tile. The tiles of all heads, and the next ones being prefetched, fit in L2.
pub(in super::super) const KEYS: usize = 32;

/// The two products with channels in lanes. Staged data are 32-bit words, typed as f32 even if they are bfloat16 pairs.
pub(in super::super) trait Products: Scheme {
    /// Copies a query of `dim` values. Padding after it that is read later must be zero already.
    ///
    /// # Safety
    /// `from` must be readable for `dim` values, `to` writable for `dim` words.
    unsafe fn stage<S: Simd>(s: S, from: *const Self::Element, dim: usize, to: *mut f32);

    /// `scores[r][j] = q[r] . k[j]` for `ROWS` queries, `SIDE` keys at a time; prefetches the rows of `next`. Scores
    /// after the last key are unspecified.
    ///
    /// # Safety
    /// Keys must be readable for `dim` values, `q` (start and distance of rows) for `ROWS` rows, padded to whole vectors;
    /// `wide` must be writable for [KEYS][dim] values, `scores` for [ROWS][KEYS].
    unsafe fn scores<S: Simd, const ROWS: usize, const SIDE: usize>(
        s: S,
        keys: [&Rows<Self::Element>; 2],
        dim: usize,
        q: (*const f32, usize),
        wide: *mut f32,
        scores: *mut f32,
    );

    /// `o[r] = rescale[r] * o[r] + sum over j of weights[r][j] * v[j]`, `SIDE` vectors of channels at a time. Weights
    /// past the last key are zero.
    ///
    /// # Safety
    /// As [`Products::scores`], with `o` writable for `ROWS` rows of `dim` values, rounded up to whole vectors.
    unsafe fn outputs<S: Simd, const ROWS: usize, const SIDE: usize>(
        s: S,
        values: [&Rows<Self::Element>; 2],
        dim: usize,
        weights: *mut f32,
        rescale: &[f32; ROWS],
        wide: *mut f32,
        o: (*mut f32, usize),
    );
}
