//! Scores between tokens of one block of 16: the decay between two tokens is a product of factors that are each at
//! most 1, so nothing overflows however fast the gates are, and nothing is lost however slow.
#![allow(unsafe_code)] // Vector loads through raw pointers, bounds asserted first.

use super::BLOCK;
use super::matrix::{Matrix, View};
use crate::simd::Simd;

/// Rows of 16 tokens.
#[derive(Clone, Copy)]
pub(super) struct Tokens<'a> {
    pub(super) q: View<'a>,
    pub(super) k: View<'a>,
    /// e^g.
    pub(super) decay: View<'a>,
    /// Minus the write strength of each token.
    pub(super) minus_beta: &'a [f32],
}

/// For tokens i and j of a block that begins at row `at` of both outputs, with `d = product of decay over j+1..=i`:
/// `by_query[at + i][at + j] = sum(q_i d k_j)` for j <= i, and `by_key[at + i][at + j] = -beta_i sum(k_i d k_j)` for
/// j < i. Entries above the diagonal are zero.
#[inline(always)]
pub(super) fn score<S: Simd>(
    simd: S,
    tokens: Tokens<'_>,
    channels: usize,
    at: usize,
    by_query: &mut Matrix,
    by_key: &mut Matrix,
) {
    for view in [tokens.q, tokens.k, tokens.decay] {
        assert!((BLOCK - 1) * view.stride + channels <= view.data.len(), "rows of a block");
    }
    assert!(channels.is_multiple_of(BLOCK) && tokens.minus_beta.len() >= BLOCK);
    for i in 0..BLOCK {
        by_query.row_mut(at + i)[at..at + BLOCK].fill(0.0);
        by_key.row_mut(at + i)[at..at + BLOCK].fill(0.0);
    }
    let (query_stride, key_stride) = (by_query.stride(), by_key.stride());
    let mut slab = Slab {
        tokens,
        first: 0,
        by_query: by_query.data_mut()[at * query_stride + at..].as_mut_ptr(),
        query_stride,
        by_key: by_key.data_mut()[at * key_stride + at..].as_mut_ptr(),
        key_stride,
    };
    let end = channels / S::LANES;
    // SAFETY: the slabs are inside the rows, asserted above.
    unsafe {
        while slab.first + 8 <= end {
            slab.add::<S, 8>(simd);
        }
        while slab.first + 4 <= end {
            slab.add::<S, 4>(simd);
        }
        while slab.first < end {
            slab.add::<S, 1>(simd);
        }
    }
}

/// Some vectors of channels, and the two 16 x 16 squares that their share of the scores is added to.
struct Slab<'a> {
    tokens: Tokens<'a>,
    first: usize,
    by_query: *mut f32,
    query_stride: usize,
    by_key: *mut f32,
    key_stride: usize,
}

impl Slab<'_> {
    /// Adds the share of `WIDTH` vectors and advances by them.
    ///
    /// # Safety
    /// The vectors must be inside the rows.
    #[inline(always)]
    unsafe fn add<S: Simd, const WIDTH: usize>(&mut self, simd: S) {
        // With 32 registers two keys are carried along, which halves the loads per sum.
        let both =
            matches!(S::ISA, device::Isa::Avx512 | device::Isa::Avx512Bf16 | device::Isa::Neon);
        // SAFETY: the caller's contract.
        unsafe {
            if both {
                self.keys::<S, WIDTH, 2>(simd);
            } else {
                self.keys::<S, WIDTH, 1>(simd);
            }
        }
        self.first += WIDTH;
    }

    /// # Safety
    /// As [`Self::add`].
    #[inline(always)]
    unsafe fn keys<S: Simd, const WIDTH: usize, const KEYS: usize>(&mut self, simd: S) {
        for j in (0..BLOCK).step_by(KEYS) {
            // Keys j.. decayed up to the current token.
            let mut carried = [[simd.splat(0.0); WIDTH]; KEYS];
            // SAFETY: the caller's contract.
            unsafe {
                for i in j..j + KEYS {
                    self.token::<S, WIDTH, KEYS, true>(simd, i, j, &mut carried);
                }
                for i in j + KEYS..BLOCK {
                    self.token::<S, WIDTH, KEYS, false>(simd, i, j, &mut carried);
                }
            }
        }
    }

    /// Token i against the keys of tokens j.., one of which enters here when `ENTERS`.
    ///
    /// # Safety
    /// As [`Self::add`].
    #[inline(always)]
    unsafe fn token<S: Simd, const WIDTH: usize, const KEYS: usize, const ENTERS: bool>(
        &mut self,
        simd: S,
        i: usize,
        j: usize,
        carried: &mut [[S::V; WIDTH]; KEYS],
    ) {
        let Tokens { q, k, decay, minus_beta } = self.tokens;
        let mut query_sums = [simd.splat(0.0); KEYS];
        let mut key_sums = [simd.splat(0.0); KEYS];
        for vector in 0..WIDTH {
            let channel = (self.first + vector) * S::LANES;
            // SAFETY: the caller's contract.
            let (q, k, decay) = unsafe {
                (
                    simd.load(q.data.as_ptr().add(i * q.stride + channel)),
                    simd.load(k.data.as_ptr().add(i * k.stride + channel)),
                    simd.load(decay.data.as_ptr().add(i * decay.stride + channel)),
                )
            };
            for key in 0..KEYS {
                // Before a key enters its zeros stay zeros.
                let old = simd.mul(carried[key][vector], decay);
                let now = if ENTERS && i == j + key { k } else { old };
                carried[key][vector] = now;
                query_sums[key] = simd.fma(q, now, query_sums[key]);
                key_sums[key] = simd.fma(k, now, key_sums[key]);
            }
        }
        // All sums before any store: the compiler preserves their order, and each store would delay the next sum.
        let query_scores = query_sums.map(|sum| simd.reduce_add(sum));
        let key_scores = key_sums.map(|sum| simd.reduce_add(sum));
        for key in 0..KEYS {
            // SAFETY: both squares have 16 rows and columns.
            unsafe {
                *self.by_query.add(i * self.query_stride + j + key) += query_scores[key];
                if !ENTERS || i > j + key {
                    let score = minus_beta[i] * key_scores[key];
                    *self.by_key.add(i * self.key_stride + j + key) += score;
                }
            }
        }
    }
}
