//! Step sizes of a chunk of tokens and their decays.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers, bounds checked first.

use super::operands::Operands;
use crate::fast_math;
use crate::simd::Simd;
use crate::simd::map::{Exp, map};
use ops::Element;
use std::ops::Range;

/// With `a` the running sum of dt A within the chunk (falling from below 0), token `j` reaches token `i >= j` as
/// `exp(a_i - a_j)`. The sum is stored in two parts, `a = high + low`, each f32: with fast decay `a` is large, and in a
/// single f32 the difference of two neighbours would have the rounding error of `a`.
#[derive(Debug, Default)]
pub(super) struct Decay {
    /// Step sizes.
    pub(super) dt: Vec<f32>,
    /// `exp(a_i)`: how the state before the chunk reaches token `i`.
    pub(super) from_start: Vec<f32>,
    /// `exp(a_last - a_j) dt_j`: how token `j` reaches the state after the chunk.
    pub(super) to_end: Vec<f32>,
    high: Vec<f32>,
    low: Vec<f32>,
    /// 0, 1, 2, .. to compare columns with.
    index: Vec<f32>,
}

impl Decay {
    /// Computes them for one head over the tokens of a chunk.
    #[inline(always)]
    pub(super) fn of_chunk<S: Simd, E: Element>(
        &mut self,
        simd: S,
        operands: &Operands<'_, E>,
        head: usize,
        tokens: Range<usize>,
    ) {
        let len = tokens.len();
        // Whole vectors may be read past the end; what they hold there is never used.
        let padded = len.next_multiple_of(S::LANES);
        for values in [&mut self.dt, &mut self.high, &mut self.low] {
            values.clear();
            values.resize(padded, 0.0);
        }
        while self.index.len() < padded {
            self.index.push(self.index.len() as f32);
        }
        operands.steps(simd, head, tokens, &mut self.dt[..len]);
        let rate = f64::from(operands.rate[head]);
        let mut sum = 0f64;
        for i in 0..len {
            sum += f64::from(self.dt[i]) * rate;
            self.high[i] = sum as f32;
            self.low[i] = (sum - f64::from(self.high[i])) as f32;
        }
        self.from_start.clear();
        self.from_start.extend_from_slice(&self.high[..len]);
        map(simd, &mut self.from_start, Exp);
        let mut to_end = std::mem::take(&mut self.to_end);
        to_end.clear();
        to_end.resize(padded, 0.0);
        if let Some(last) = len.checked_sub(1) {
            let (high, low) = (simd.splat(self.high[last]), simd.splat(self.low[last]));
            for at in (0..padded).step_by(S::LANES) {
                // SAFETY: every vector has `padded` values.
                unsafe {
                    let reach = self.reach(simd, high, low, at);
                    simd.store(to_end.as_mut_ptr().add(at), reach);
                }
            }
        }
        to_end.truncate(len);
        self.to_end = to_end;
    }

    /// How the whole state decays over the chunk.
    pub(super) fn over_chunk(&self) -> f32 {
        self.from_start.last().copied().unwrap_or(1.0)
    }

    /// `exp(a_i - a_j) dt_j` for the tokens `j` from `at` on, `a_i` given in two parts. The minimum prevents overflow for
    /// tokens after `i`, whose values the caller discards.
    ///
    /// # Safety
    /// `at + LANES` must not exceed the padded length.
    #[inline(always)]
    unsafe fn reach<S: Simd>(&self, simd: S, high: S::V, low: S::V, at: usize) -> S::V {
        // SAFETY: the caller's contract.
        let (their_high, their_low, dt) = unsafe {
            (
                simd.load(self.high.as_ptr().add(at)),
                simd.load(self.low.as_ptr().add(at)),
                simd.load(self.dt.as_ptr().add(at)),
            )
        };
        let difference = simd.add(simd.sub(high, their_high), simd.sub(low, their_low));
        simd.mul(fast_math::decay(simd, simd.min(difference, simd.splat(0.0))), dt)
    }

    /// One row of the matrix that mixes a chunk's tokens: `scores_j exp(a_i - a_j) dt_j` for `j <= i`, else 0.
    /// `out` is written up to the padded length.
    ///
    /// # Panics
    /// When `scores` has fewer than `i + 1` values or `out` fewer than the padded length.
    #[inline(always)]
    pub(super) fn mix_row<S: Simd>(&self, simd: S, i: usize, scores: &[f32], out: &mut [f32]) {
        let padded = self.high.len();
        assert!(scores.len() > i && out.len() >= padded && i < padded);
        let (high, low) = (simd.splat(self.high[i]), simd.splat(self.low[i]));
        let zero = simd.splat(0.0);
        for at in (0..padded).step_by(S::LANES) {
            // SAFETY: `at + LANES <= padded`, the length of every vector and at most that of `out`; scores are read
            // only as far as they go.
            unsafe {
                let to = out.as_mut_ptr().add(at);
                if at > i {
                    simd.store(to, zero);
                    continue;
                }
                let count = S::LANES.min(scores.len() - at);
                let score = match count == S::LANES {
                    true => simd.load(scores.as_ptr().add(at)),
                    false => simd.load_first(scores.as_ptr().add(at), count),
                };
                let mixed = simd.mul(score, self.reach(simd, high, low, at));
                let column = simd.load(self.index.as_ptr().add(at));
                simd.store(to, simd.select_gt(simd.splat(i as f32 + 0.5), column, mixed, zero));
            }
        }
    }
}
