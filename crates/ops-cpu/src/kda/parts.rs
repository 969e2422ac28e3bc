//! Splits a call into blocks, and handles the blocks that no scheme computes: padding, empty sequences, unused slots.
#![allow(unsafe_code)] // Blocks write disjoint rows and columns of the outputs.

use super::operands::Operands;
use crate::simd::{Simd, SimdKernel, dispatch};
use crate::stream::{STREAM_BYTES, stream_copy};
use device::{Device, Isa, SharedMut};
use ops::kda::KdaProblem;
use ops::{Element, TensorMap, elements_mut};
use std::ops::Range;

/// f32 values of a cache line: the narrowest part of a head's values.
pub(super) const LINE: usize = 16;

/// Value columns per block. State columns are independent in the recurrence, so cores can share a head, each repeating the
/// key side: `fixed_work` is that side's share of a whole head's work. Results do not depend on the width.
fn columns_per_part(problem: &KdaProblem, threads: usize, fixed_work: f64) -> usize {
    let heads = problem.sequences.count() * problem.value_heads;
    let lines = problem.value_dim.div_ceil(LINE).max(1);
    let time = |lines_per_part: usize| {
        let rounds = (heads * lines.div_ceil(lines_per_part)).div_ceil(threads);
        let share = lines_per_part as f64 / lines as f64;
        rounds as f64 * (fixed_work + (1.0 - fixed_work) * share)
    };
    // The widest of equally fast splits: fewer parts repeat less work.
    let best = (1..=lines).rev().min_by(|a, b| time(*a).total_cmp(&time(*b)));
    best.unwrap_or(1) * LINE
}

/// One block's share of a call: some value columns of one head of one sequence.
pub(super) struct Part<'a, E> {
    /// Token rows of the sequence, at least one.
    pub(super) tokens: Range<usize>,
    /// The value head.
    pub(super) head: usize,
    /// First value column.
    pub(super) column: usize,
    /// Number of value columns.
    pub(super) columns: usize,
    /// Whether the final state is written by non-temporal stores.
    pub(super) stream: bool,
    slot: usize,
    operands: &'a Operands<'a, E>,
    o: &'a SharedMut<'a, E>,
    states: &'a SharedMut<'a, f32>,
}

impl<'a, E: Element> Part<'a, E> {
    /// The call's tensors.
    pub(super) fn operands(&self) -> &'a Operands<'a, E> {
        self.operands
    }

    /// This part's columns of a row of `o`.
    pub(super) fn output(&mut self, token: usize) -> &mut [E] {
        let start = self.operands.output(token, self.head, self.column);
        // SAFETY: no other part has this sequence, head and columns, and the borrow of `self` keeps rows apart.
        unsafe { self.o.slice(start..start + self.columns) }
    }

    /// Offset in the initial state of this part's columns of one row.
    pub(super) fn initial_state(&self, channel: usize) -> usize {
        self.operands.state_row(self.slot, self.head, channel) + self.column
    }

    /// This part's columns of some rows of the final state; more than one row only where they follow each other.
    pub(super) fn final_state(&mut self, channels: Range<usize>) -> &mut [f32] {
        let whole = self.columns == self.operands.problem.value_dim;
        assert!(channels.len() <= 1 || whole, "rows of a part are not contiguous");
        let start = self.initial_state(channels.start);
        // SAFETY: no other sequence has this slot, no other part these columns of this head.
        unsafe { self.states.slice(start..start + channels.len() * self.columns) }
    }

    /// The final state of the whole head, where this part has all of its columns.
    pub(super) fn whole_final_state(&mut self) -> Option<&mut [f32]> {
        let KdaProblem { value_dim, key_dim, .. } = *self.operands.problem;
        let start = self.initial_state(0);
        // SAFETY: no other sequence has this slot, no other part any column of this head, and the borrow of `self`
        // keeps calls apart.
        (self.columns == value_dim)
            .then(|| unsafe { self.states.slice(start..start + key_dim * value_dim) })
    }

    /// The rows of a state in ranges that [`Self::final_state`] takes, of up to `most` rows.
    pub(super) fn rows_together(&self, most: usize) -> impl Iterator<Item = Range<usize>> + use<E> {
        let KdaProblem { value_dim, key_dim, .. } = *self.operands.problem;
        let together = if self.columns == value_dim { most } else { 1 };
        (0..key_dim).step_by(together).map(move |row| row..(row + together).min(key_dim))
    }
}

/// Runs a scheme: `body` for each part of each sequence that has tokens and is not padding. This function writes all
/// other outputs.
pub(super) fn launch<E: Element, K: Default>(
    isa: Isa,
    kernel: &str,
    device: &Device,
    operands: &Operands<'_, E>,
    fixed_work: f64,
    outputs: &mut TensorMap,
    body: impl Fn(&mut K, Part<'_, E>) + Sync,
) {
    let problem = operands.problem;
    let (heads, value_dim) = (problem.value_heads, problem.value_dim);
    let width = columns_per_part(problem, device.capabilities().threads, fixed_work);
    let parts = value_dim.div_ceil(width);
    // Both outputs are borrowed mutably: one is removed from the map meanwhile.
    let mut o = outputs.remove("o");
    {
        let o = &SharedMut::new(elements_mut::<E>(o.as_mut()));
        let states = elements_mut::<f32>(outputs.get_mut("final_state"));
        let stream = size_of_val(states) >= STREAM_BYTES;
        let states = &SharedMut::new(states);
        let untouched = problem.slots.untouched();
        let computed = problem.sequences.count() * heads * parts;
        let grid = computed + untouched.len() * heads;
        device.launch_streaming(kernel, grid, K::default, |scratch, block| {
            let copy = |slot: usize, head: usize| {
                let start = operands.state_row(slot, head, 0);
                // SAFETY: no block computes this head of this slot, and this block alone copies it.
                let to = unsafe { states.slice(start..start + problem.state_len()) };
                dispatch(isa, CopyState { operands, start, to, stream });
            };
            if let Some(rest) = block.checked_sub(computed) {
                return copy(untouched[rest / heads], rest % heads);
            }
            let (sequence, head) = (block / parts / heads, block / parts % heads);
            let column = block % parts * width;
            let columns = width.min(value_dim - column);
            let tokens = problem.sequences.range(sequence);
            match problem.slots.of(sequence) {
                Some(slot) if tokens.is_empty() => {
                    if column == 0 {
                        copy(slot, head);
                    }
                }
                Some(slot) => {
                    let part =
                        Part { tokens, head, column, columns, stream, slot, operands, o, states };
                    body(scratch, part);
                }
                None => {
                    for token in tokens {
                        let start = operands.output(token, head, column);
                        // SAFETY: no other block has this sequence, head and columns.
                        unsafe { o.slice(start..start + columns) }.fill(E::default());
                    }
                }
            }
        });
    }
    outputs.extend(o.map(|o| ("o".to_owned(), o)));
}

/// One head's state, from the initial to the final one.
struct CopyState<'a, E> {
    operands: &'a Operands<'a, E>,
    start: usize,
    to: &'a mut [f32],
    stream: bool,
}

impl<E: Element> SimdKernel for CopyState<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { operands, start, to, stream } = self;
        match operands.initial_state_f32() {
            Some(from) if stream => {
                stream_copy(simd, &from[start..start + to.len()], to);
            }
            _ => operands.initial_state(simd, start, to),
        }
    }
}
