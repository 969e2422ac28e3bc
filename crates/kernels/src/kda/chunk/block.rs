//! One part of one head: the walk over its chunks.

use super::matrix::{Matrix, Start, multiply, solve_16};
use super::pairs::{Tokens, score};
use super::{BLOCK, CHUNK};
use crate::Element;
use crate::cpu::simd::{Simd, SimdKernel, math};
use crate::kda::operands::{map, narrow};
use crate::kda::parts::Part;
use std::ops::Range;

/// Buffers of one thread. K and V stand for the channels and columns, padded to whole blocks.
#[derive(Default)]
pub(super) struct Scratch {
    /// One block's queries, keys, log decays and decays: `[BLOCK, K]` each.
    q: Matrix,
    k: Matrix,
    log_decay: Matrix,
    decay: Matrix,
    /// Queries, and minus beta times keys, decayed from the block's start, later from the chunk's: `[CHUNK, K]`.
    q_left: Matrix,
    k_left: Matrix,
    /// Keys decayed to the end of the last finished block, transposed: `[K, CHUNK]`.
    k_right: Matrix,
    /// Scores of queries, and minus beta times those of keys: `[CHUNK, CHUNK]`.
    by_query: Matrix,
    by_key: Matrix,
    /// Outputs: `[CHUNK, V]`.
    o: Matrix,
    /// What is written to the state: `[CHUNK, V]`.
    u: Matrix,
    /// `[K, V]`.
    state: Matrix,
    /// Sum of log decays since the chunk's start, and its exponential; one block's own: rows of `[3, K]`.
    since: Matrix,
    /// Minus beta of a block.
    minus_beta: [f32; BLOCK],
}

impl Scratch {
    fn resize(&mut self, channels: usize, columns: usize) {
        for matrix in [&mut self.q, &mut self.k, &mut self.log_decay, &mut self.decay] {
            matrix.resize(BLOCK, channels);
        }
        self.q_left.resize(CHUNK, channels);
        self.k_left.resize(CHUNK, channels);
        self.k_right.resize(channels, CHUNK);
        self.by_query.resize(CHUNK, CHUNK);
        self.by_key.resize(CHUNK, CHUNK);
        self.o.resize(CHUNK, columns);
        self.u.resize(CHUNK, columns);
        self.state.resize(channels, columns);
        self.since.resize(3, channels);
    }
}

/// All chunks of one part.
pub(super) struct Walk<'a, E> {
    pub(super) part: Part<'a, E>,
    pub(super) scratch: &'a mut Scratch,
}

impl<E: Element> SimdKernel for Walk<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { part, scratch } = self;
        let key_dim = part.operands().problem.key_dim;
        let channels = key_dim.next_multiple_of(BLOCK);
        let columns = part.columns.next_multiple_of(BLOCK);
        scratch.resize(channels, columns);
        let mut walk = Sizes { part, scratch, key_dim, channels, columns };
        walk.load_state(simd);
        let tokens = walk.part.tokens.clone();
        for start in tokens.clone().step_by(CHUNK) {
            walk.chunk(simd, start..(start + CHUNK).min(tokens.end));
        }
        walk.store_state();
    }
}

struct Sizes<'a, E> {
    part: Part<'a, E>,
    scratch: &'a mut Scratch,
    /// K as given, and padded.
    key_dim: usize,
    channels: usize,
    /// The part's columns, padded.
    columns: usize,
}

impl<E: Element> Sizes<'_, E> {
    #[inline(always)]
    fn load_state<S: Simd>(&mut self, simd: S) {
        let state = &mut self.scratch.state;
        // A wider part before this one left its columns in the padding.
        state.data_mut().fill(0.0);
        for channel in 0..self.key_dim {
            let start = self.part.initial_state(channel);
            let row = &mut state.row_mut(channel)[..self.part.columns];
            self.part.operands().initial_state(simd, start, row);
        }
    }

    fn store_state(&mut self) {
        for channel in 0..self.key_dim {
            let row = &self.scratch.state.row_mut(channel)[..self.part.columns];
            self.part.final_state(channel..channel + 1).copy_from_slice(row);
        }
    }

    #[inline(always)]
    fn chunk<S: Simd>(&mut self, simd: S, tokens: Range<usize>) {
        let padded = tokens.len().next_multiple_of(BLOCK);
        self.scratch.since.row_mut(0).fill(0.0);
        self.scratch.since.row_mut(1).fill(1.0);
        for at in (0..padded).step_by(BLOCK) {
            let first = tokens.start + at;
            self.load_block(simd, first..(first + BLOCK).min(tokens.end));
            self.decay_block(simd, at);
            self.score_block(simd, at);
        }
        self.values(simd, tokens.clone(), padded);
        let Self { channels, columns, key_dim, .. } = *self;
        let Scratch { q_left, k_left, k_right, by_query, by_key, o, u, state, since, .. } =
            &mut *self.scratch;
        // O = qd S, and beta V - beta kd S.
        let (o_stride, u_stride, state_stride) = (o.stride(), u.stride(), state.stride());
        let sizes = [padded, columns, key_dim];
        let old_state = state.from_row(0);
        multiply(simd, sizes, q_left.from_row(0), old_state, Start::Zero, o.data_mut(), o_stride);
        multiply(simd, sizes, k_left.from_row(0), old_state, Start::Old, u.data_mut(), u_stride);
        for at in (0..padded).step_by(BLOCK) {
            // U of this block: what earlier blocks write is taken off, then the block's own triangle is solved.
            let (before, own) = u.data_mut().split_at_mut(at * u_stride);
            let before = super::matrix::View { data: before, stride: u_stride };
            let sizes = [BLOCK, columns, at];
            multiply(simd, sizes, by_key.from_row(at), before, Start::Old, own, u_stride);
            let mut triangle = by_key.from_row(at);
            triangle.data = &triangle.data[at..];
            solve_16(simd, triangle, own, u_stride, columns);
            // O += Tril(scores) U.
            let sizes = [BLOCK, columns, at + BLOCK];
            let own = &mut o.data_mut()[at * o_stride..];
            multiply(simd, sizes, by_query.from_row(at), u.from_row(0), Start::Old, own, o_stride);
        }
        // S <- e^G S + (keys decayed to the chunk's end)^T U.
        let decay = Start::Scaled(&since.data()[since.stride()..][..channels]);
        let sizes = [channels, columns, padded];
        multiply(
            simd,
            sizes,
            k_right.from_row(0),
            u.from_row(0),
            decay,
            state.data_mut(),
            state_stride,
        );
        for (row, token) in tokens.enumerate() {
            let row = &o.row_mut(row)[..self.part.columns];
            narrow(row, self.part.output(token));
        }
    }

    /// Queries, keys, gates and write strengths of up to a block of tokens; the others write nothing.
    #[inline(always)]
    fn load_block<S: Simd>(&mut self, simd: S, tokens: Range<usize>) {
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
    fn decay_block<S: Simd>(&mut self, simd: S, at: usize) {
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
                    // The log decays are not needed any more: their rows take the keys decayed to the block's end.
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
            let (query_stride, key_stride) = (by_query.stride(), by_key.stride());
            let right = k_right.from_row(0);
            let to = &mut by_query.data_mut()[at * query_stride..];
            multiply(simd, sizes, q_left.from_row(at), right, Start::Zero, to, query_stride);
            let to = &mut by_key.data_mut()[at * key_stride..];
            multiply(simd, sizes, k_left.from_row(at), right, Start::Zero, to, key_stride);
            // From here on the left sides meet the state: they decay from the chunk's start.
            let from_start = &since.data()[since_stride..][..channels];
            for row in at..at + BLOCK {
                for left in [&mut *q_left, &mut *k_left] {
                    for (x, factor) in left.row_mut(row).iter_mut().zip(from_start) {
                        *x *= factor;
                    }
                }
            }
        }
        // Keys of earlier blocks decay over this one. Sums of log decays are exact where products of factors just
        // below 1 are not, and only the state's own factor lives for a whole sequence.
        let (old, own) = since.data_mut().split_at_mut(2 * since_stride);
        let (sum, from_start) = old.split_at_mut(since_stride);
        for ((sum, from_start), own) in sum.iter_mut().zip(&mut *from_start).zip(&mut *own) {
            *sum += *own;
            *from_start = *sum;
        }
        map(simd, own, |x| math::exp(simd, x));
        map(simd, from_start, |x| math::exp(simd, x));
        for channel in 0..channels {
            let factor = own[channel];
            k_right.row_mut(channel)[..at].iter_mut().for_each(|x| *x *= factor);
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
    fn score_block<S: Simd>(&mut self, simd: S, at: usize) {
        let Scratch { q, k, decay, by_query, by_key, minus_beta, .. } = &mut *self.scratch;
        let tokens =
            Tokens { q: q.from_row(0), k: k.from_row(0), decay: decay.from_row(0), minus_beta };
        score(simd, tokens, self.channels, at, by_query, by_key);
    }

    /// U begins as beta V.
    #[inline(always)]
    fn values<S: Simd>(&mut self, simd: S, tokens: Range<usize>, padded: usize) {
        let (operands, head) = (self.part.operands(), self.part.head);
        for row in 0..padded {
            let to = self.scratch.u.row_mut(row);
            let token = tokens.start + row;
            if token >= tokens.end {
                to.fill(0.0);
                continue;
            }
            let (to, rest) = to.split_at_mut(self.part.columns);
            rest.fill(0.0);
            operands.value(simd, token, head, self.part.column, to);
            let beta = operands.beta(token, head);
            to.iter_mut().for_each(|x| *x *= beta);
        }
    }
}
