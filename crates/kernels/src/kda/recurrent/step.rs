//! One token of one head.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers.

use crate::Element;
use crate::cpu::simd::Simd;
use crate::kda::operands::{Operands, decay, dot};
use std::ops::Range;

/// One token of one head: its coefficients per key channel, and its sums over the state per value column.
#[derive(Default)]
pub(super) struct Step {
    q: Vec<f32>,
    k: Vec<f32>,
    g: Vec<f32>,
    /// e^g = whole + part.
    whole: Vec<f32>,
    part: Vec<f32>,
    /// Key and query times e^g.
    k_decayed: Vec<f32>,
    q_decayed: Vec<f32>,
    /// (k e^g)^T S, then the write beta (v - k^T e^g S).
    write: Vec<f32>,
    /// (q e^g)^T S, then the output.
    out: Vec<f32>,
    value: Vec<f32>,
}

impl Step {
    /// Makes room for K channels and some value columns.
    pub(super) fn resize(&mut self, channels: usize, columns: usize) {
        let Self { q, k, g, whole, part, k_decayed, q_decayed, write, out, value } = self;
        for row in [q, k, g, whole, part, k_decayed, q_decayed] {
            row.resize(channels, 0.0);
        }
        for row in [write, out, value] {
            row.resize(columns, 0.0);
        }
    }

    /// The output, after [`Self::output`].
    pub(super) fn out(&self) -> &[f32] {
        &self.out
    }

    /// Reads one token's rows and begins the sums.
    #[inline(always)]
    pub(super) fn prepare<S: Simd, E: Element>(
        &mut self,
        simd: S,
        operands: &Operands<'_, E>,
        token: usize,
        head: usize,
    ) {
        self.write.fill(0.0);
        self.out.fill(0.0);
        operands.query(simd, token, head, &mut self.q);
        operands.key(simd, token, head, &mut self.k);
        operands.log_decay(simd, token, head, &mut self.g);
        let channels = self.g.len();
        let mut at = 0;
        while at < channels {
            let count = S::LANES.min(channels - at);
            // SAFETY: every row has `channels` values.
            unsafe {
                let load = |row: &[f32]| simd.load_first(row.as_ptr().add(at), count);
                let (whole, part) = decay(simd, load(&self.g));
                let both = simd.add(whole, part);
                let (k, q) = (simd.mul(load(&self.k), both), simd.mul(load(&self.q), both));
                simd.store_first(self.whole.as_mut_ptr().add(at), whole, count);
                simd.store_first(self.part.as_mut_ptr().add(at), part, count);
                simd.store_first(self.k_decayed.as_mut_ptr().add(at), k, count);
                simd.store_first(self.q_decayed.as_mut_ptr().add(at), q, count);
            }
            at += count;
        }
    }

    /// Sums over the state before this token, `ROWS` rows at a time; rows are `stride` apart.
    ///
    /// # Panics
    /// When the rows leave the slice.
    #[inline(always)]
    pub(super) fn read<S: Simd, const ROWS: usize>(
        &mut self,
        simd: S,
        channels: usize,
        state: &[f32],
        stride: usize,
    ) {
        assert!((channels - 1) * stride + self.write.len() <= state.len(), "rows to read");
        let together = channels / ROWS * ROWS;
        for row in (0..together).step_by(ROWS) {
            self.read_rows::<S, ROWS>(simd, row, &state[row * stride..], stride);
        }
        for row in together..channels {
            self.read_rows::<S, 1>(simd, row, &state[row * stride..], stride);
        }
    }

    #[inline(always)]
    fn read_rows<S: Simd, const COUNT: usize>(
        &mut self,
        simd: S,
        channel: usize,
        state: &[f32],
        stride: usize,
    ) {
        let k: [S::V; COUNT] = std::array::from_fn(|i| simd.splat(self.k_decayed[channel + i]));
        let q: [S::V; COUNT] = std::array::from_fn(|i| simd.splat(self.q_decayed[channel + i]));
        let columns = self.write.len();
        let from = state.as_ptr();
        let (for_key, for_query) = (self.write.as_mut_ptr(), self.out.as_mut_ptr());
        let whole = columns / S::LANES * S::LANES;
        // SAFETY: `read` asserted that every row of the state has `columns` values, as both sums have.
        unsafe {
            for at in (0..whole).step_by(S::LANES) {
                let (for_key, for_query) = (for_key.add(at), for_query.add(at));
                let (mut by_key, mut by_query) = (simd.load(for_key), simd.load(for_query));
                for i in 0..COUNT {
                    let s = simd.load(from.add(i * stride + at));
                    by_key = simd.fma(k[i], s, by_key);
                    by_query = simd.fma(q[i], s, by_query);
                }
                simd.store(for_key, by_key);
                simd.store(for_query, by_query);
            }
            let rest = columns - whole;
            if rest > 0 {
                let (for_key, for_query) = (for_key.add(whole), for_query.add(whole));
                let mut by_key = simd.load_first(for_key, rest);
                let mut by_query = simd.load_first(for_query, rest);
                for i in 0..COUNT {
                    let s = simd.load_first(from.add(i * stride + whole), rest);
                    by_key = simd.fma(k[i], s, by_key);
                    by_query = simd.fma(q[i], s, by_query);
                }
                simd.store_first(for_key, by_key, rest);
                simd.store_first(for_query, by_query, rest);
            }
        }
    }

    /// The write `beta (v - k^T e^g S)` and the output `q^T S' = (q e^g)^T S + (q . k) write`.
    #[inline(always)]
    pub(super) fn output<S: Simd, E: Element>(
        &mut self,
        simd: S,
        operands: &Operands<'_, E>,
        token: usize,
        head: usize,
        column: usize,
    ) {
        operands.value(simd, token, head, column, &mut self.value);
        let beta = operands.beta(token, head);
        let overlap = dot(simd, &self.q, &self.k);
        for ((write, out), value) in self.write.iter_mut().zip(&mut self.out).zip(&self.value) {
            *write = beta * (value - *write);
            *out += overlap * *write;
        }
    }

    /// The state after this token, for some rows: `to = e^g from + k write`. Rows of `from` are `stride` apart, those
    /// of `to` follow each other.
    ///
    /// # Safety
    /// `from` must be readable and `to` writable for all rows; they are the same rows or do not overlap.
    #[inline(always)]
    pub(super) unsafe fn write<S: Simd>(
        &self,
        simd: S,
        channels: Range<usize>,
        from: *const f32,
        stride: usize,
        to: *mut f32,
    ) {
        let columns = self.write.len();
        let write = self.write.as_ptr();
        let vectors = columns / S::LANES * S::LANES;
        let rest = columns - vectors;
        for (row, channel) in channels.enumerate() {
            let k = simd.splat(self.k[channel]);
            let whole = simd.splat(self.whole[channel]);
            let part = simd.splat(self.part[channel]);
            // SAFETY: the caller's contract.
            unsafe {
                let (from, to) = (from.add(row * stride), to.add(row * columns));
                for at in (0..vectors).step_by(S::LANES) {
                    let s = simd.load(from.add(at));
                    let added = simd.mul(k, simd.load(write.add(at)));
                    let kept = simd.fma(part, s, added);
                    simd.store(to.add(at), simd.fma(whole, s, kept));
                }
                if rest > 0 {
                    let s = simd.load_first(from.add(vectors), rest);
                    let added = simd.mul(k, simd.load_first(write.add(vectors), rest));
                    let kept = simd.fma(part, s, added);
                    simd.store_first(to.add(vectors), simd.fma(whole, s, kept), rest);
                }
            }
        }
    }
}
