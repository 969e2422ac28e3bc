//! Token by token, one pass over the state in memory per call: for decode steps and short sequences, where the chunk
//! form would compute more than it saves.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers.

use super::KdaProblem;
use super::operands::{Operands, decay, dot, narrow};
use super::parts::{self, Part};
use crate::cpu::simd::{Simd, SimdKernel, dispatch};
use crate::stream::stream_copy;
use crate::{DType, Element, Inputs, TensorMap};
use device::{Device, Isa};
use half::{bf16, f16};

/// State rows taken together: their coefficients stay in registers and share one pass over the two sums.
const ROWS: usize = 4;
/// Rows written to a buffer in the first cache before they are copied past it. Lines at the two ends of a copy are
/// written plainly, so longer copies lose less.
const STREAM_ROWS: usize = 16;
/// Share of a block's work that does not shrink with its columns: rows of q, k and g.
const FIXED_WORK: f64 = 0.1;

/// Nothing: every problem can be computed token by token.
pub(super) fn why_not(_: &KdaProblem) -> Option<String> {
    None
}

/// Runs the variant whose kernel name is `kernel`.
pub(super) fn run(
    isa: Isa,
    kernel: &str,
    problem: &KdaProblem,
    inputs: Inputs<'_>,
    device: &Device,
    outputs: &mut TensorMap,
) {
    match problem.dtype {
        DType::Bf16 => launch::<bf16>(isa, kernel, problem, inputs, device, outputs),
        DType::F16 => launch::<f16>(isa, kernel, problem, inputs, device, outputs),
        _ => launch::<f32>(isa, kernel, problem, inputs, device, outputs),
    }
}

fn launch<E: Element>(
    isa: Isa,
    kernel: &str,
    problem: &KdaProblem,
    inputs: Inputs<'_>,
    device: &Device,
    outputs: &mut TensorMap,
) {
    let operands = Operands::<E>::read(problem, inputs);
    parts::launch(isa, kernel, device, &operands, FIXED_WORK, outputs, |scratch, part| {
        dispatch(isa, Block { part, scratch });
    });
}

/// Buffers of one thread.
#[derive(Default)]
struct Scratch {
    /// q, k, log decay, whole and part of the decay, k and q times the decay: `[7][K]`.
    rows: Vec<f32>,
    /// What S holds for the key and for the query, and the output: `[3][columns]`.
    sums: Vec<f32>,
    /// `[K][columns]`, for more than one token.
    state: Vec<f32>,
    /// `[STREAM_ROWS][columns]`.
    written: Vec<f32>,
}

struct Block<'a, E> {
    part: Part<'a, E>,
    scratch: &'a mut Scratch,
}

impl<E: Element> SimdKernel for Block<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { mut part, scratch } = self;
        let operands = part.operands();
        let (channels, columns, head) = (operands.problem.key_dim, part.columns, part.head);
        let Scratch { rows, sums, state, written } = scratch;
        // Only growth writes; what is there is overwritten before it is read.
        rows.resize(7 * channels, 0.0);
        sums.resize(3 * columns, 0.0);
        written.resize(STREAM_ROWS * columns, 0.0);
        let (last, tokens) = (part.tokens.end - 1, part.tokens.clone());
        // A single token's state passes through; more tokens, or a state to widen, work on a copy.
        let direct = operands.initial_state_f32().filter(|_| tokens.len() == 1);
        if direct.is_none() {
            state.resize(channels * columns, 0.0);
            for (channel, row) in state.chunks_exact_mut(columns.max(1)).enumerate() {
                operands.initial_state(simd, part.initial_state(channel), row);
            }
        }
        for token in tokens {
            let mut step = Step::split(rows, sums, channels, columns);
            step.prepare(simd, operands, token, head);
            match direct {
                Some(initial) => {
                    let from = &initial[part.initial_state(0)..];
                    step.read(simd, from, operands.problem.value_dim);
                }
                None => step.read(simd, state, columns),
            }
            step.output(simd, operands, token, head, part.column);
            narrow(step.out, part.output(token));
            if token != last {
                // SAFETY: the whole copy is one block of rows, written over itself.
                unsafe {
                    step.write(simd, 0..channels, state.as_ptr(), columns, state.as_mut_ptr())
                };
                continue;
            }
            let whole_rows = columns == operands.problem.value_dim;
            let together = if whole_rows { STREAM_ROWS } else { 1 };
            for channel in (0..channels).step_by(together) {
                let range = channel..(channel + together).min(channels);
                let len = range.len() * columns;
                let (from, stride) = match direct {
                    Some(initial) => {
                        (&initial[part.initial_state(channel)..], operands.problem.value_dim)
                    }
                    None => (&state[channel * columns..], columns),
                };
                assert!((range.len() - 1) * stride + columns <= from.len());
                let stream = part.stream;
                let to = part.final_state(range.clone());
                assert_eq!(to.len(), len);
                // SAFETY: `from` holds the rows, asserted above; `to` and `written` hold `len` values.
                unsafe {
                    if stream {
                        step.write(simd, range, from.as_ptr(), stride, written.as_mut_ptr());
                        stream_copy(simd, &written[..len], to);
                    } else {
                        step.write(simd, range, from.as_ptr(), stride, to.as_mut_ptr());
                    }
                }
            }
        }
        if part.stream {
            simd.stream_end();
        }
    }
}

/// One token of one head: its coefficients per key channel, and its sums over the state per value column.
struct Step<'a> {
    q: &'a mut [f32],
    k: &'a mut [f32],
    g: &'a mut [f32],
    /// e^g = whole + part.
    whole: &'a mut [f32],
    part: &'a mut [f32],
    /// Key and query times e^g.
    k_decayed: &'a mut [f32],
    q_decayed: &'a mut [f32],
    /// (k e^g)^T S, then the write beta (v - k^T e^g S).
    write: &'a mut [f32],
    /// (q e^g)^T S, then the output.
    out: &'a mut [f32],
    value: &'a mut [f32],
}

impl<'a> Step<'a> {
    #[inline(always)]
    fn split(rows: &'a mut [f32], sums: &'a mut [f32], channels: usize, columns: usize) -> Self {
        let (q, rows) = rows.split_at_mut(channels);
        let (k, rows) = rows.split_at_mut(channels);
        let (g, rows) = rows.split_at_mut(channels);
        let (whole, rows) = rows.split_at_mut(channels);
        let (part, rows) = rows.split_at_mut(channels);
        let (k_decayed, q_decayed) = rows.split_at_mut(channels);
        let (write, sums) = sums.split_at_mut(columns);
        let (out, value) = sums.split_at_mut(columns);
        let q_decayed = &mut q_decayed[..channels];
        let value = &mut value[..columns];
        Self { q, k, g, whole, part, k_decayed, q_decayed, write, out, value }
    }

    #[inline(always)]
    fn prepare<S: Simd, E: Element>(
        &mut self,
        simd: S,
        operands: &Operands<'_, E>,
        token: usize,
        head: usize,
    ) {
        operands.query(simd, token, head, self.q);
        operands.key(simd, token, head, self.k);
        operands.log_decay(simd, token, head, self.g);
        let channels = self.g.len();
        let mut at = 0;
        while at < channels {
            let count = S::LANES.min(channels - at);
            // SAFETY: every row has `channels` values.
            unsafe {
                let load = |row: &[f32]| simd.load_first(row.as_ptr().add(at), count);
                let (whole, part) = decay(simd, load(self.g));
                let both = simd.add(whole, part);
                let (k, q) = (simd.mul(load(self.k), both), simd.mul(load(self.q), both));
                simd.store_first(self.whole.as_mut_ptr().add(at), whole, count);
                simd.store_first(self.part.as_mut_ptr().add(at), part, count);
                simd.store_first(self.k_decayed.as_mut_ptr().add(at), k, count);
                simd.store_first(self.q_decayed.as_mut_ptr().add(at), q, count);
            }
            at += count;
        }
    }

    /// The two sums over the state before this token, whose rows are `stride` apart.
    #[inline(always)]
    fn read<S: Simd>(&mut self, simd: S, state: &[f32], stride: usize) {
        let (channels, columns) = (self.g.len(), self.write.len());
        assert!((channels - 1) * stride + columns <= state.len());
        self.write.fill(0.0);
        self.out.fill(0.0);
        let whole = channels / ROWS * ROWS;
        for channel in (0..whole).step_by(ROWS) {
            self.read_rows::<S, ROWS>(simd, channel, state, stride);
        }
        for channel in whole..channels {
            self.read_rows::<S, 1>(simd, channel, state, stride);
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
        let from = state[channel * stride..].as_ptr();
        let (for_key, for_query) = (self.write.as_mut_ptr(), self.out.as_mut_ptr());
        let mut at = 0;
        while at < columns {
            let count = S::LANES.min(columns - at);
            // SAFETY: `read` asserted that every row of the state has `columns` values, as both sums have.
            unsafe {
                let mut by_key = simd.load_first(for_key.add(at), count);
                let mut by_query = simd.load_first(for_query.add(at), count);
                for i in 0..COUNT {
                    let s = simd.load_first(from.add(i * stride + at), count);
                    by_key = simd.fma(k[i], s, by_key);
                    by_query = simd.fma(q[i], s, by_query);
                }
                simd.store_first(for_key.add(at), by_key, count);
                simd.store_first(for_query.add(at), by_query, count);
            }
            at += count;
        }
    }

    /// The write `beta (v - k^T e^g S)` and the output `q^T S' = (q e^g)^T S + (q . k) write`.
    #[inline(always)]
    fn output<S: Simd, E: Element>(
        &mut self,
        simd: S,
        operands: &Operands<'_, E>,
        token: usize,
        head: usize,
        column: usize,
    ) {
        operands.value(simd, token, head, column, self.value);
        let beta = operands.beta(token, head);
        let overlap = dot(simd, self.q, self.k);
        for ((write, out), value) in self.write.iter_mut().zip(&mut *self.out).zip(&*self.value) {
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
    unsafe fn write<S: Simd>(
        &self,
        simd: S,
        channels: std::ops::Range<usize>,
        from: *const f32,
        stride: usize,
        to: *mut f32,
    ) {
        let columns = self.write.len();
        let write = self.write.as_ptr();
        for (row, channel) in channels.enumerate() {
            let k = simd.splat(self.k[channel]);
            let whole = simd.splat(self.whole[channel]);
            let part = simd.splat(self.part[channel]);
            let mut at = 0;
            while at < columns {
                let count = S::LANES.min(columns - at);
                // SAFETY: the caller's contract.
                unsafe {
                    let s = simd.load_first(from.add(row * stride + at), count);
                    let added = simd.mul(k, simd.load_first(write.add(at), count));
                    let kept = simd.fma(part, s, added);
                    simd.store_first(to.add(row * columns + at), simd.fma(whole, s, kept), count);
                }
                at += count;
            }
        }
    }
}
