//! One head (or some of its columns) of one sequence, chunk after chunk.
#![allow(unsafe_code)] // Blocks write disjoint columns of o and rows of the states.

use crate::floats::{narrow, widen};
use crate::gemm::{Mat, MatMut, PackedB, Store, gemm_packed};
use crate::simd::map::{Scale, map};
use crate::simd::{Simd, SimdKernel, dispatch};
use crate::ssd::chunk::{cut, scores};
use crate::ssd::decay::Decay;
use crate::ssd::operands::{Operands, Rows, finish};
use crate::transpose::transpose;
use device::{Isa, SharedMut};
use ops::Element;
use std::ops::Range;

/// Columns of the mixing matrix multiplied at once; the rows above them are zero and skipped.
const MIX_COLUMNS: usize = 48;

/// Buffers of one thread.
#[derive(Default)]
pub(super) struct Scratch {
    decay: Decay,
    /// The state transposed, `[N, columns]`: the layout in which both of its products read it without a transpose.
    state: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    x: Vec<f32>,
    /// x with each token's weight; then one row of z.
    weighted: Vec<f32>,
    y: Vec<f32>,
    mix: Vec<f32>,
    packed: PackedB,
}

/// One block of the second launch.
pub(super) struct Block<'a, E> {
    pub(super) operands: &'a Operands<'a, E>,
    pub(super) scores: &'a [f32],
    pub(super) chunk: usize,
    pub(super) sequence: usize,
    pub(super) head: usize,
    pub(super) columns: Range<usize>,
    pub(super) o: &'a SharedMut<'a, E>,
    pub(super) states: &'a SharedMut<'a, f32>,
    pub(super) scratch: &'a mut Scratch,
}

/// Runs a block compiled for `isa`.
pub(super) fn run<E: Element>(isa: Isa, block: Block<'_, E>) {
    dispatch(isa, Run { isa, block });
}

struct Run<'a, E> {
    isa: Isa,
    block: Block<'a, E>,
}

impl<E: Element> SimdKernel for Run<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { isa, block } = self;
        let Block { operands, scores, chunk, sequence, head, columns, o, states, scratch } = block;
        let problem = operands.problem;
        let tokens = problem.sequences.range(sequence);
        let width = columns.len();
        let Some(slot) = problem.slots.of(sequence) else {
            for token in tokens {
                let at = operands.row(token, head, columns.start);
                // SAFETY: this block alone has these columns of o.
                unsafe { o.slice(at..at + width) }.fill(E::default());
            }
            return;
        };
        let n = problem.state_dim;
        let at = operands.state(slot, head) + columns.start * n;
        let Scratch { decay, state, b, c, x, weighted, y, mix, packed } = scratch;
        state.resize(n * width, 0.0);
        // Products with a zero state are skipped: every new sequence starts with one.
        let initial = operands.initial_state.as_deref().map(|initial| &initial[at..at + width * n]);
        let initial = initial.filter(|initial| !is_zero(initial));
        if let Some(initial) = initial {
            transpose(simd, initial, width, n, state);
        }
        let mut live = initial.is_some();
        let d = match operands.d.is_empty() {
            true => &[][..],
            false => &operands.d[head * problem.head_dim + columns.start..][..width],
        };

        for tokens in cut(tokens, chunk) {
            let len = tokens.len();
            decay.of_chunk(simd, operands, head, tokens.clone());
            let group = head / problem.heads_per_group();
            let projections = Rows::of_group(problem, tokens.clone(), group);
            let values = Rows::of_head(problem, tokens.clone(), head, columns.clone());
            let b = projections.read(simd, operands.b, b);
            let c = projections.read(simd, operands.c, c);
            let x = values.read(simd, operands.x, x);
            y.resize(len * width, 0.0);

            // y_i = exp(a_i) C_i h, from the state before the chunk.
            if live {
                packed.pack(isa, Mat::new(state, n, width, width));
                gemm_packed(isa, 1.0, c, packed, Store::Replace, MatMut::new(y, len, width, width));
                for (y, decay) in y.chunks_exact_mut(width).zip(&decay.from_start) {
                    map(simd, y, Scale(*decay));
                }
            } else {
                y.fill(0.0);
            }

            // y_i += sum over j <= i of (C_i B_j) exp(a_i - a_j) dt_j x_j, from the chunk's own tokens.
            let stride = len.next_multiple_of(S::LANES);
            mix.resize(len * stride, 0.0);
            let scores = &scores[scores::range(problem, chunk, &tokens, group)];
            for (i, mix) in mix.chunks_exact_mut(stride).enumerate() {
                decay.mix_row(simd, i, &scores[i * chunk..][..len], mix);
            }
            for first in (0..len).step_by(MIX_COLUMNS) {
                let columns = MIX_COLUMNS.min(len - first);
                let x = Mat::new(&x.data[first * x.row_stride..], columns, width, x.row_stride);
                packed.pack(isa, x);
                let mix = Mat::new(&mix[first * stride + first..], len - first, columns, stride);
                let y = MatMut::new(&mut y[first * width..], len - first, width, width);
                gemm_packed(isa, 1.0, mix, packed, Store::Add, y);
            }

            // h <- exp(a_last) h + sum over j of exp(a_last - a_j) dt_j B_j x_j.
            weighted.resize(len * width, 0.0);
            for (row, weighted) in weighted.chunks_exact_mut(width).enumerate() {
                let x = &x.data[row * x.row_stride..][..width];
                let weight = decay.to_end[row];
                for (weighted, x) in weighted.iter_mut().zip(x) {
                    *weighted = weight * x;
                }
            }
            packed.pack(isa, Mat::new(weighted, len, width, width));
            let store = if live { Store::Add } else { Store::Replace };
            if live {
                map(simd, state, Scale(decay.over_chunk()));
            }
            gemm_packed(isa, 1.0, b.t(), packed, store, MatMut::new(state, n, width, width));
            live = true;

            for (row, (y, token)) in y.chunks_exact_mut(width).zip(tokens.clone()).enumerate() {
                let at = operands.row(token, head, columns.start);
                let gate = &mut weighted[..if problem.has_z { width } else { 0 }];
                if let Some(all) = operands.z {
                    widen(simd, &all[at..at + width], gate);
                }
                finish(simd, y, &x.data[row * x.row_stride..][..width], d, gate);
                // SAFETY: this block alone has these columns of o.
                narrow(simd, y, unsafe { o.slice(at..at + width) });
            }
        }
        if !live {
            // A sequence without tokens, whose state began as zero.
            state.fill(0.0);
        }
        // SAFETY: no other sequence has this slot, no other block these columns of this head.
        let end_state = unsafe { states.slice(at..at + width * n) };
        transpose(simd, state, n, width, end_state);
    }
}

/// Whether all values are zero, checked in blocks: without a branch per value the loop vectorizes.
fn is_zero(values: &[f32]) -> bool {
    const GROUP: usize = 256;
    let any = |group: &[f32]| group.iter().fold(false, |any, value| any | (*value != 0.0));
    !values.chunks(GROUP).any(any)
}
