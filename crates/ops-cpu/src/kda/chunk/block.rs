//! One block of 16 tokens: its gates, its decayed queries and keys, and its scores.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers into rows of known length.

use super::BLOCK;
use super::head::{Head, Scratch};
use super::products::{Start, multiply};
use super::scores::{Tokens, score};
use crate::simd::map::{Exp, Scale, map};
use crate::simd::{Simd, math};
use ops::Element;
use std::ops::Range;

impl<E: Element> Head<'_, E> {
    /// Queries, keys, gates and write strengths of up to a block of tokens; the others write nothing.
    #[inline(always)]
    pub(super) fn load_block<S: Simd>(&mut self, simd: S, tokens: Range<usize>) {
        let (operands, head, key_dim) = (self.part.operands(), self.part.head, self.key_dim);
        let Scratch { q, k, log_decay, minus_beta, .. } = &mut *self.scratch;
        for row in 0..BLOCK {
            let token = tokens.start + row;
            if token < tokens.end {
                operands.query(simd, token, head, &mut q.row_mut(row)[..key_dim]);
                operands.key(simd, token, head, &mut k.row_mut(row)[..key_dim]);
                operands.log_decay(simd, token, head, &mut log_decay.row_mut(row)[..key_dim]);
                minus_beta[row] = -operands.beta(token, head);
            } else {
                for matrix in [&mut *q, &mut *k, &mut *log_decay] {
                    matrix.row_mut(row).fill(0.0);
                }
                minus_beta[row] = 0.0;
            }
        }
    }

    /// Decays the block's queries and keys from its start, scores them against earlier blocks of the chunk, and adds
    /// the block's keys, decayed to its end, to the right-hand side.
    #[inline(always)]
    pub(super) fn decay_block<S: Simd>(&mut self, simd: S, at: usize) {
        let channels = self.channels;
        let Scratch {
            q,
            k,
            log_decay,
            decay,
            q_left,
            k_left,
            k_right,
            by_query,
            by_key,
            since,
            minus_beta,
            ..
        } = &mut *self.scratch;
        let stride = q.stride();
        let since_stride = since.stride();
        for channel in (0..channels).step_by(S::LANES) {
            // SAFETY: all rows have `channels` values.
            unsafe {
                let mut product = simd.splat(1.0);
                let mut sum = simd.splat(0.0);
                for row in 0..BLOCK {
                    let offset = row * stride + channel;
                    let g = simd.load(log_decay.data().as_ptr().add(offset));
                    let factor = math::exp(simd, g);
                    simd.store(decay.data_mut().as_mut_ptr().add(offset), factor);
                    sum = simd.add(sum, g);
                    product = simd.mul(product, factor);
                    let query = simd.load(q.data().as_ptr().add(offset));
                    let key = simd.load(k.data().as_ptr().add(offset));
                    let left = (at + row) * stride + channel;
                    simd.store(q_left.data_mut().as_mut_ptr().add(left), simd.mul(query, product));
                    let key = simd.mul(key, simd.splat(minus_beta[row]));
                    simd.store(k_left.data_mut().as_mut_ptr().add(left), simd.mul(key, product));
                }
                let mut product = simd.splat(1.0);
                for row in (0..BLOCK).rev() {
                    let offset = row * stride + channel;
                    // The rows of log decays are free here: they store the keys decayed to the block's end.
                    let key = simd.load(k.data().as_ptr().add(offset));
                    simd.store(
                        log_decay.data_mut().as_mut_ptr().add(offset),
                        simd.mul(key, product),
                    );
                    product = simd.mul(product, simd.load(decay.data().as_ptr().add(offset)));
                }
                simd.store(since.data_mut().as_mut_ptr().add(2 * since_stride + channel), sum);
            }
        }
        if at > 0 {
            let sizes = [BLOCK, at, self.key_dim];
            let right = k_right.from_row(0);
            let to = by_query.from_row_mut(at);
            multiply(simd, sizes, q_left.from_row(at), right, Start::Zero, to, &mut ());
            let to = by_key.from_row_mut(at);
            multiply(simd, sizes, k_left.from_row(at), right, Start::Zero, to, &mut ());
            // The left sides are multiplied with the state below: they decay from the chunk's start.
            let from_start = &since.data()[since_stride..][..channels];
            for row in at..at + BLOCK {
                for left in [&mut *q_left, &mut *k_left] {
                    for (x, factor) in left.row_mut(row).iter_mut().zip(from_start) {
                        *x *= factor;
                    }
                }
            }
        }
        // Keys of earlier blocks decay over this block. Sums of log decays avoid the rounding errors of products of factors
        // just below 1; only the state's own factor applies for a whole sequence.
        let (old, own) = since.data_mut().split_at_mut(2 * since_stride);
        let (sum, from_start) = old.split_at_mut(since_stride);
        for ((sum, from_start), own) in sum.iter_mut().zip(&mut *from_start).zip(&mut *own) {
            *sum += *own;
            *from_start = *sum;
        }
        map(simd, own, Exp);
        map(simd, from_start, Exp);
        for channel in 0..channels {
            let factor = own[channel];
            map(simd, &mut k_right.row_mut(channel)[..at], Scale(factor));
        }
        let right_stride = k_right.stride();
        for row in (0..BLOCK).step_by(S::TRANSPOSE) {
            for channel in (0..channels).step_by(S::TRANSPOSE) {
                let from = &log_decay.data()[row * stride + channel..];
                let to = &mut k_right.data_mut()[channel * right_stride + at + row..];
                assert!((S::TRANSPOSE - 1) * stride + S::TRANSPOSE <= from.len());
                assert!((S::TRANSPOSE - 1) * right_stride + S::TRANSPOSE <= to.len());
                // SAFETY: asserted above.
                unsafe { simd.transpose(from.as_ptr(), stride, to.as_mut_ptr(), right_stride) };
            }
        }
    }

    /// Scores within the block.
    #[inline(always)]
    pub(super) fn score_block<S: Simd>(&mut self, simd: S, at: usize) {
        let Scratch { q, k, decay, by_query, by_key, minus_beta, .. } = &mut *self.scratch;
        let tokens =
            Tokens { q: q.from_row(0), k: k.from_row(0), decay: decay.from_row(0), minus_beta };
        score(simd, tokens, self.channels, at, by_query, by_key);
    }
}
