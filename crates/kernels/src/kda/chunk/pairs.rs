//! Scores between tokens of one block of 16: the decay between two tokens is a product of factors that are each at
//! most 1, so nothing overflows however fast the gates are, and nothing is lost however slow.
#![allow(unsafe_code)] // Vector loads through raw pointers, bounds asserted first.

use super::BLOCK;
use super::matrix::{Matrix, View};
use crate::cpu::simd::Simd;

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
/// j < i. What is above is zero.
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
    let mut slab = Slab { tokens, first: 0, at, by_query, by_key };
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

/// Some vectors of channels, and where their share of the scores is added.
struct Slab<'a> {
    tokens: Tokens<'a>,
    first: usize,
    at: usize,
    by_query: &'a mut Matrix,
    by_key: &'a mut Matrix,
}

impl Slab<'_> {
    /// Adds the share of `WIDTH` vectors and moves on by as many.
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
        let at = |view: View<'_>, token: usize, vector: usize| {
            view.data.as_ptr().wrapping_add(token * view.stride + (self.first + vector) * S::LANES)
        };
        let Tokens { q, k, decay, minus_beta } = self.tokens;
        let query_stride = self.by_query.stride();
        let key_stride = self.by_key.stride();
        let by_query = self.by_query.data_mut();
        let by_key = self.by_key.data_mut();
        for j in (0..BLOCK).step_by(KEYS) {
            // Keys j.. decayed up to token i, which runs.
            let mut carried = [[simd.splat(0.0); WIDTH]; KEYS];
            for i in j..BLOCK {
                let mut query_sums = [simd.splat(0.0); KEYS];
                let mut key_sums = [simd.splat(0.0); KEYS];
                for vector in 0..WIDTH {
                    // SAFETY: the caller's contract.
                    let (q, k, decay) = unsafe {
                        let load = |view| simd.load(at(view, i, vector));
                        (load(q), load(k), load(decay))
                    };
                    for (key, carried) in carried.iter_mut().enumerate() {
                        // A key enters at its own token; before that its zeros stay zeros.
                        let old = carried[vector];
                        carried[vector] = if i == j + key { k } else { simd.mul(old, decay) };
                        query_sums[key] = simd.fma(q, carried[vector], query_sums[key]);
                        key_sums[key] = simd.fma(k, carried[vector], key_sums[key]);
                    }
                }
                for key in 0..KEYS {
                    let column = self.at + j + key;
                    let row = self.at + i;
                    by_query[row * query_stride + column] += simd.reduce_add(query_sums[key]);
                    if i > j + key {
                        by_key[row * key_stride + column] +=
                            minus_beta[i] * simd.reduce_add(key_sums[key]);
                    }
                }
            }
        }
    }
}
