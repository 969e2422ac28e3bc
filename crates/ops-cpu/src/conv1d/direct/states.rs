//! Transposes states of some channels to one row per token and back: in memory a channel's tokens are contiguous.

use super::Operands;
use ops::Element;
use ops::conv1d::Conv1dProblem;
use std::ops::Range;

/// Reads the state of some channels of a sequence into `rows`, one row a token, the oldest first.
#[inline(always)]
pub(super) fn read<E: Element>(
    operands: &Operands<'_, E>,
    sequence: usize,
    slot: usize,
    channels: Range<usize>,
    rows: &mut [f32],
) {
    let problem = operands.problem;
    let Some(initial) = operands.initial_state else {
        rows.fill(0.0);
        return;
    };
    let len = problem.state_len;
    let initial = &initial[range(problem, slot, &channels)];
    let width = channels.len();
    // Column of each row; the identity unless the state is a ring.
    let column = |row: usize| problem.state_column(sequence, len - row);
    match (len, &problem.ring) {
        (1, None) => split::<1>(initial, rows, width),
        (2, None) => split::<2>(initial, rows, width),
        (3, None) => split::<3>(initial, rows, width),
        _ => {
            for (row, to) in rows.chunks_exact_mut(width).enumerate() {
                let column = column(row);
                for (to, from) in to.iter_mut().zip(initial.chunks_exact(len)) {
                    *to = from[column];
                }
            }
        }
    }
}

/// Writes the state of some channels of a sequence after its last token; `row(r)` is the row of token `T - S + r`.
///
/// # Panics
/// When a row is not as long as there are channels.
#[inline(always)]
pub(super) fn write<'a>(
    problem: &Conv1dProblem,
    sequence: usize,
    tokens: usize,
    width: usize,
    row: impl Fn(usize) -> &'a [f32],
    out: &mut [f32],
) {
    let len = problem.state_len;
    match (len, &problem.ring) {
        (1, None) => join::<1>(std::array::from_fn(row), out, width),
        (2, None) => join::<2>(std::array::from_fn(row), out, width),
        (3, None) => join::<3>(std::array::from_fn(row), out, width),
        _ => {
            for r in 0..len {
                let column = match &problem.ring {
                    None => r,
                    Some(positions) => (positions[sequence] + tokens + r) % len,
                };
                for (out, value) in out.chunks_exact_mut(len).zip(row(r)) {
                    out[column] = *value;
                }
            }
        }
    }
}

/// Range of the states of some channels of a slot, `[channels, state_len]`, in the pool.
pub(super) fn range(problem: &Conv1dProblem, slot: usize, channels: &Range<usize>) -> Range<usize> {
    let first = slot * problem.channels;
    (first + channels.start) * problem.state_len..(first + channels.end) * problem.state_len
}

/// Transposes a state `[width, LEN]` to rows. `LEN` is a constant so that the compiler vectorizes.
#[inline(always)]
fn split<const LEN: usize>(from: &[f32], rows: &mut [f32], width: usize) {
    let mut rows: [&mut [f32]; LEN] = {
        let mut rest = rows.chunks_exact_mut(width);
        std::array::from_fn(|_| rest.next().unwrap_or_default())
    };
    for channel in 0..width {
        for (token, row) in rows.iter_mut().enumerate() {
            row[channel] = from[channel * LEN + token];
        }
    }
}

#[inline(always)]
fn join<const LEN: usize>(rows: [&[f32]; LEN], out: &mut [f32], width: usize) {
    let rows = rows.map(|row| &row[..width]);
    for (channel, out) in out.chunks_exact_mut(LEN).enumerate() {
        for (out, row) in out.iter_mut().zip(&rows) {
            *out = row[channel];
        }
    }
}
