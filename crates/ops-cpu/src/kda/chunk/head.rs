//! The loop over the chunks of one part: some value columns of one head of one sequence.

use super::matrix::Matrix;
use super::prefetch::Prefetch;
use super::products::{Start, multiply, solve_16};
use super::{BLOCK, CHUNK};
use crate::floats::narrow;
use crate::kda::parts::Part;
use crate::simd::{Simd, SimdKernel};
use ops::Element;
use std::ops::Range;

/// Buffers of one thread. K and V are the channels and columns, padded to whole blocks.
#[derive(Default)]
pub(super) struct Scratch {
    /// One block's queries, keys, log decays and decays: `[BLOCK, K]` each.
    pub(super) q: Matrix,
    pub(super) k: Matrix,
    pub(super) log_decay: Matrix,
    pub(super) decay: Matrix,
    /// Queries, and minus beta times keys, decayed from the block's start, later from the chunk's: `[CHUNK, K]`.
    pub(super) q_left: Matrix,
    pub(super) k_left: Matrix,
    /// Keys decayed to the end of the last finished block, transposed: `[K, CHUNK]`.
    pub(super) k_right: Matrix,
    /// Scores of queries, and minus beta times those of keys: `[CHUNK, CHUNK]`.
    pub(super) by_query: Matrix,
    pub(super) by_key: Matrix,
    /// Outputs: `[CHUNK, V]`.
    o: Matrix,
    /// Values written to the state (U in the README): `[CHUNK, V]`.
    u: Matrix,
    /// `[K, V]`.
    state: Matrix,
    /// Rows of `[3, K]`: sum of log decays since the chunk's start, its exponential, and one block's sum, later its exponential.
    pub(super) since: Matrix,
    /// Minus beta of a block.
    pub(super) minus_beta: [f32; BLOCK],
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

/// Computes one part.
pub(super) struct ChunkScan<'a, E> {
    pub(super) part: Part<'a, E>,
    pub(super) scratch: &'a mut Scratch,
}

impl<E: Element> SimdKernel for ChunkScan<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { part, scratch } = self;
        let key_dim = part.operands().problem.key_dim;
        let channels = key_dim.next_multiple_of(BLOCK);
        let columns = part.columns.next_multiple_of(BLOCK);
        scratch.resize(channels, columns);
        let mut head = Head { part, scratch, key_dim, channels, columns };
        head.load_state(simd);
        let tokens = head.part.tokens.clone();
        for start in tokens.clone().step_by(CHUNK) {
            head.chunk(simd, start..(start + CHUNK).min(tokens.end));
        }
        head.store_state();
    }
}

/// A part and its scratch.
pub(super) struct Head<'a, E> {
    pub(super) part: Part<'a, E>,
    pub(super) scratch: &'a mut Scratch,
    /// K.
    pub(super) key_dim: usize,
    /// K padded.
    pub(super) channels: usize,
    /// The part's columns, padded.
    columns: usize,
}

impl<E: Element> Head<'_, E> {
    #[inline(always)]
    fn load_state<S: Simd>(&mut self, simd: S) {
        let state = &mut self.scratch.state;
        // The padding may have columns of an earlier, wider part.
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
        self.read_state(simd, tokens.clone(), padded);
        for at in (0..padded).step_by(BLOCK) {
            self.solve_block(simd, at);
        }
        self.advance_state(simd, padded);
        for (row, token) in tokens.enumerate() {
            let row = &self.scratch.o.row_mut(row)[..self.part.columns];
            narrow(simd, row, self.part.output(token));
        }
    }

    /// Initializes U with beta V.
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

    /// O = qd S, and U = beta V - beta kd S.
    #[inline(always)]
    fn read_state<S: Simd>(&mut self, simd: S, tokens: Range<usize>, padded: usize) {
        let (columns, key_dim) = (self.columns, self.key_dim);
        let Scratch { q_left, k_left, o, u, state, .. } = &mut *self.scratch;
        let (o, u) = (o.from_row_mut(0), u.from_row_mut(0));
        let next = &mut Prefetch::new(&mut self.part, tokens, [padded, columns, key_dim]);
        let (sizes, state) = ([padded, columns, key_dim], state.from_row(0));
        multiply(simd, sizes, q_left.from_row(0), state, Start::Zero, o, next);
        multiply(simd, sizes, k_left.from_row(0), state, Start::Current, u, next);
    }

    /// One block of U: subtracts the contributions of earlier blocks, then solves the block's triangle. Then
    /// O += Tril(scores) U for its rows.
    #[inline(always)]
    fn solve_block<S: Simd>(&mut self, simd: S, at: usize) {
        let columns = self.columns;
        let Scratch { by_query, by_key, o, u, .. } = &mut *self.scratch;
        let (before, own) = u.split_at(at);
        let earlier = by_key.from_row(at);
        multiply(simd, [BLOCK, columns, at], earlier, before, Start::Current, own, &mut ());
        solve_16(simd, earlier.from_column(at), u.from_row_mut(at), columns);
        let (scores, o) = (by_query.from_row(at), o.from_row_mut(at));
        let sizes = [BLOCK, columns, at + BLOCK];
        multiply(simd, sizes, scores, u.from_row(0), Start::Current, o, &mut ());
    }

    /// S <- e^G S + (keys decayed to the chunk's end)^T U.
    #[inline(always)]
    fn advance_state<S: Simd>(&mut self, simd: S, padded: usize) {
        let (columns, channels) = (self.columns, self.channels);
        let Scratch { k_right, u, state, since, .. } = &mut *self.scratch;
        let decay = Start::Scaled(&since.data()[since.stride()..][..channels]);
        let (sizes, state) = ([channels, columns, padded], state.from_row_mut(0));
        multiply(simd, sizes, k_right.from_row(0), u.from_row(0), decay, state, &mut ());
    }
}
