//! One token of one head.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers.

use crate::kda::operands::{Operands, decay, dot};
use crate::simd::Simd;
use device::Isa;
use ops::Element;
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
    /// Resizes the buffers for K channels and some value columns.
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

    /// Reads one token's rows.
    #[inline(always)]
    pub(super) fn prepare<S: Simd, E: Element>(
        &mut self,
        simd: S,
        operands: &Operands<'_, E>,
        token: usize,
        head: usize,
    ) {
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

    /// Sums over the state before this token; rows are `stride` apart.
    ///
    /// # Panics
    /// When the rows leave the slice.
    #[inline(always)]
    pub(super) fn read<S: Simd>(&mut self, simd: S, channels: usize, state: &[f32], stride: usize) {
        let columns = self.write.len();
        assert!((channels - 1) * stride + columns <= state.len(), "rows to read");
        // The two sums of each vector stay in registers over all rows, and a row is read as one stream of lines.
        let many_registers = !matches!(S::ISA, Isa::Avx2 | Isa::Portable);
        let mut at = 0;
        while at < columns {
            let state = &state[at..];
            at += match (columns - at) / S::LANES {
                8.. if many_registers => {
                    self.read_vectors::<S, 8>(simd, at, channels, state, stride)
                }
                4.. => self.read_vectors::<S, 4>(simd, at, channels, state, stride),
                1.. => self.read_vectors::<S, 1>(simd, at, channels, state, stride),
                0 => self.read_rest(simd, at, channels, state, stride),
            };
        }
    }

    /// The sums of `COUNT` vectors of columns from `at` on, where `state` begins; returns their number of columns.
    #[inline(always)]
    fn read_vectors<S: Simd, const COUNT: usize>(
        &mut self,
        simd: S,
        at: usize,
        channels: usize,
        state: &[f32],
        stride: usize,
    ) -> usize {
        let mut by_key = [simd.splat(0.0); COUNT];
        let mut by_query = [simd.splat(0.0); COUNT];
        for channel in 0..channels {
            let (k, q) = (self.k_decayed[channel], self.q_decayed[channel]);
            let (k, q) = (simd.splat(k), simd.splat(q));
            for vector in 0..COUNT {
                // SAFETY: `read` asserted that every row of the state has these columns.
                let s =
                    unsafe { simd.load(state.as_ptr().add(channel * stride + vector * S::LANES)) };
                by_key[vector] = simd.fma(k, s, by_key[vector]);
                by_query[vector] = simd.fma(q, s, by_query[vector]);
            }
        }
        let columns = COUNT * S::LANES;
        let sums = self.write[at..at + columns].chunks_exact_mut(S::LANES).zip(by_key);
        let outs = self.out[at..at + columns].chunks_exact_mut(S::LANES).zip(by_query);
        for (row, sum) in sums.chain(outs) {
            // SAFETY: each chunk has as many values as a vector.
            unsafe { simd.store(row.as_mut_ptr(), sum) };
        }
        columns
    }

    /// The sums of the last columns, fewer than a vector has, from `at` on; returns their number.
    #[inline(always)]
    fn read_rest<S: Simd>(
        &mut self,
        simd: S,
        at: usize,
        channels: usize,
        state: &[f32],
        stride: usize,
    ) -> usize {
        let count = self.write.len() - at;
        let (mut by_key, mut by_query) = (simd.splat(0.0), simd.splat(0.0));
        for channel in 0..channels {
            // SAFETY: `read` asserted that every row of the state has these columns.
            let s = unsafe { simd.load_first(state.as_ptr().add(channel * stride), count) };
            by_key = simd.fma(simd.splat(self.k_decayed[channel]), s, by_key);
            by_query = simd.fma(simd.splat(self.q_decayed[channel]), s, by_query);
        }
        // SAFETY: both rows have `count` values from `at` on.
        unsafe {
            simd.store_first(self.write[at..].as_mut_ptr(), by_key, count);
            simd.store_first(self.out[at..].as_mut_ptr(), by_query, count);
        }
        count
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

    /// The whole state after this token, by non-temporal stores: rows of `from` and `to` are contiguous.
    ///
    /// # Safety
    /// `from` must be readable and `to` writable for K rows and not overlap; rows must be whole lines, and `to` must
    /// start one.
    #[inline(always)]
    pub(super) unsafe fn stream<S: Simd>(&self, simd: S, from: *const f32, to: *mut f32) {
        let columns = self.write.len();
        let write = self.write.as_ptr();
        for channel in 0..self.k.len() {
            let k = simd.splat(self.k[channel]);
            let whole = simd.splat(self.whole[channel]);
            let part = simd.splat(self.part[channel]);
            // SAFETY: the caller's contract.
            unsafe {
                let (from, to) = (from.add(channel * columns), to.add(channel * columns));
                for at in (0..columns).step_by(S::LANES) {
                    let s = simd.load(from.add(at));
                    let added = simd.mul(k, simd.load(write.add(at)));
                    let kept = simd.fma(part, s, added);
                    simd.stream(to.add(at), simd.fma(whole, s, kept));
                }
            }
        }
    }
}
