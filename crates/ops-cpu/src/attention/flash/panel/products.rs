//! The two products with queries in lanes: S^T = K Q^T and O^T = V^T P^T.
//!
//! With queries in lanes neither K nor V is transposed: both are the operand that is broadcast value by value.
//! `crates/ops/src/attention/README.md` has the layouts.
#![allow(unsafe_code)] // Register tiles read and write scratch through pointers.

use super::super::scheme::Scheme;
use crate::simd::Simd;

/// Contiguous words of a key in the key tile, which is `[chunks][keys][CHUNK]`: the stride between keys is constant, which
/// limits cache set conflicts at any head dimension.
pub(in super::super) const CHUNK: usize = 64;

/// How rows are staged and multiplied. Staged data are 32-bit words, typed as f32 even if they hold bfloat16 pairs.
pub(in super::super) trait Products: Scheme {
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
    unsafe fn stage_values<S: Simd>(
        s: S,
        rows: &[*const Self::Element],
        count: usize,
        to: *mut f32,
    );

    /// Turns weights `[keys][width]` into words `[keys / PER_WORD][width]` in place; a key that is missing weighs 0.
    ///
    /// # Safety
    /// `weights` must be writable for `keys` rows, rounded up to whole words.
    unsafe fn weights<S: Simd>(s: S, weights: *mut f32, keys: usize, width: usize);

    /// `out[i][lane] = sum over t < words of keys[i][t] * q[t][lane]` for `ROWS` keys.
    ///
    /// # Safety
    /// `keys` must be readable for `ROWS` keys in each chunk of `words` (`chunk_stride` apart), `q` for
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
