//! Token by token, one pass over the state in memory per call: for decode steps and short sequences, for which chunks
//! cost more compute than they save.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers.

mod step;

use self::step::Step;
use super::operands::Operands;
use super::parts::{self, LINE, Part};
use crate::floats::narrow;
use crate::simd::{Simd, SimdKernel, dispatch};
use crate::stream::stream_copy;
use device::{Device, Isa};
use ops::kda::KdaProblem;
use ops::{Element, Inputs, TensorMap};
use std::ops::Range;

/// Rows written to a buffer in L1 before non-temporal stores copy them. Lines at the two ends of a copy are written by
/// plain stores, so longer copies lose less.
const STREAM_ROWS: usize = 16;
/// Share of a block's work that does not shrink with its columns: rows of q, k and g.
const FIXED_WORK: f64 = 0.1;

/// Nothing: every problem can be computed token by token.
pub(crate) fn why_not(_: &KdaProblem) -> Option<String> {
    None
}

/// Runs the variant whose kernel name is `kernel`.
pub(crate) fn run<E: Element>(
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
    step: Step,
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
    fn run<S: Simd>(mut self, simd: S) {
        let (channels, columns) = (self.part.operands().problem.key_dim, self.part.columns);
        // Only growth clears values; all values are overwritten before they are read.
        self.scratch.step.resize(channels, columns);
        self.scratch.written.resize(STREAM_ROWS * columns, 0.0);
        match self.part.operands().initial_state_f32() {
            Some(initial) if self.part.tokens.len() == 1 => self.pass_through(simd, initial),
            _ => {
                self.scratch.state.resize(channels * columns, 0.0);
                self.token_by_token(simd);
            }
        }
    }
}

impl<E: Element> Block<'_, E> {
    /// One token: the state is read once and written once.
    #[inline(always)]
    fn pass_through<S: Simd>(&mut self, simd: S, initial: &[f32]) {
        let Self { part, scratch } = self;
        let Scratch { step, written, .. } = &mut **scratch;
        let (operands, token, head) = (part.operands(), part.tokens.start, part.head);
        let (channels, stride) = (operands.problem.key_dim, operands.problem.value_dim);
        step.prepare(simd, operands, token, head);
        step.read(simd, channels, &initial[part.initial_state(0)..], stride);
        step.output(simd, operands, token, head, part.column);
        narrow(simd, step.out(), part.output(token));
        let (stream, start) = (part.stream, part.initial_state(0));
        let to = part.whole_final_state().filter(|to| stream && is_whole_lines(to, stride));
        if let Some(to) = to {
            let from = &initial[start..][..to.len()];
            // SAFETY: both hold K rows of `stride` values, which are whole lines; an output is no input.
            unsafe { step.stream(simd, from.as_ptr(), to.as_mut_ptr()) };
            return;
        }
        for rows in part.rows_together(STREAM_ROWS) {
            let from = &initial[part.initial_state(rows.start)..];
            put(simd, part, step, rows.clone(), from, stride, written);
        }
    }

    /// Any number of tokens: the state is copied once and stays in the cache.
    #[inline(always)]
    fn token_by_token<S: Simd>(&mut self, simd: S) {
        let Self { part, scratch } = self;
        let Scratch { step, state, written } = &mut **scratch;
        let (operands, columns, head) = (part.operands(), part.columns, part.head);
        let channels = operands.problem.key_dim;
        for (channel, row) in state.chunks_exact_mut(columns.max(1)).enumerate() {
            operands.initial_state(simd, part.initial_state(channel), row);
        }
        for token in part.tokens.clone() {
            step.prepare(simd, operands, token, head);
            step.read(simd, channels, state, columns);
            step.output(simd, operands, token, head, part.column);
            narrow(simd, step.out(), part.output(token));
            if token + 1 < part.tokens.end {
                let rows = state.as_mut_ptr();
                // SAFETY: the whole copy, `channels` rows of `columns`, written over itself.
                unsafe { step.write(simd, 0..channels, rows, columns, rows) };
            }
        }
        for rows in part.rows_together(STREAM_ROWS) {
            let from = &state[rows.start * columns..];
            put(simd, part, step, rows.clone(), from, columns, written);
        }
    }
}

/// Whether rows of `columns` values from the start of `state` are whole cache lines.
fn is_whole_lines(state: &[f32], columns: usize) -> bool {
    columns.is_multiple_of(LINE) && state.as_ptr().addr().is_multiple_of(LINE * size_of::<f32>())
}

/// Writes some rows of the state after a token. `from` begins with those rows of the state before it.
#[inline(always)]
fn put<S: Simd, E: Element>(
    simd: S,
    part: &mut Part<'_, E>,
    step: &Step,
    rows: Range<usize>,
    from: &[f32],
    stride: usize,
    written: &mut [f32],
) {
    let len = rows.len() * part.columns;
    assert!((rows.len() - 1) * stride + part.columns <= from.len(), "rows of the state before");
    let stream = part.stream;
    let to = part.final_state(rows.clone());
    let written = &mut written[..len];
    assert_eq!(to.len(), len);
    // SAFETY: `from` holds the rows, `to` and `written` hold `len` values, asserted above.
    unsafe {
        if stream {
            step.write(simd, rows, from.as_ptr(), stride, written.as_mut_ptr());
            stream_copy(simd, written, to);
        } else {
            step.write(simd, rows, from.as_ptr(), stride, to.as_mut_ptr());
        }
    }
}
