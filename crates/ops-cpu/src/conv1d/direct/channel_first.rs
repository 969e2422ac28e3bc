//! `[B, C, T]`: vectors over time, each tap a load shifted by one token.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers; blocks write disjoint parts.

use super::{Operands, Segment, TAPS, activate, channel_last};
use crate::aligned::Aligned;
use crate::floats::widen;
use crate::simd::{Simd, SimdKernel, dispatch};
use device::{Device, Isa};
use ops::Element;
use ops::conv1d::Activation;
use std::ops::Range;

/// Tokens of a block: with their outputs, both in float32, they fill half of a 32 KiB L1.
const TOKENS: usize = 2048;
/// Elements of a block; several channels if there are few tokens.
const VALUES: usize = 16 * 1024;

/// Launches the blocks: segments of tokens times groups of channels, then the state slots that no sequence uses.
pub(super) fn launch<E: Element>(
    isa: Isa,
    kernel: &str,
    operands: &Operands<'_, E>,
    device: &Device,
) {
    let problem = operands.problem;
    let per_block = (VALUES / problem.sequences.longest().clamp(1, TOKENS)).max(1);
    let groups = problem.channels.div_ceil(per_block);
    let segments = Segment::of(problem, TOKENS);
    let untouched = problem.slots.untouched();
    let blocks = segments.len() * groups;
    let grid = blocks + untouched.len() * groups;
    device.launch(kernel, grid, Scratch::<E>::default, |scratch, block| {
        let first = block % groups * per_block;
        let channels = first..(first + per_block).min(problem.channels);
        match block.checked_sub(blocks) {
            None => {
                let segment = segments[block / groups].clone();
                dispatch(isa, Block { operands, segment, channels, scratch });
            }
            // SAFETY: no sequence has this slot, and this block alone has these channels of it.
            Some(rest) => unsafe {
                channel_last::copy_unused_slot(operands, untouched[rest / groups], channels)
            },
        }
    });
}

/// Buffers of one thread.
struct Scratch<E> {
    /// W - 1 tokens of history, then the block's tokens.
    x: Aligned,
    y: Aligned,
    rounded: Vec<E>,
}

impl<E> Default for Scratch<E> {
    fn default() -> Self {
        Self { x: Aligned::default(), y: Aligned::default(), rounded: Vec::new() }
    }
}

struct Block<'a, E> {
    operands: &'a Operands<'a, E>,
    segment: Segment,
    channels: Range<usize>,
    scratch: &'a mut Scratch<E>,
}

impl<E: Element> SimdKernel for Block<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.operands.problem.width {
            2 => self.taps::<S, 2>(simd),
            3 => self.taps::<S, 3>(simd),
            _ => self.taps::<S, TAPS>(simd),
        }
    }
}

impl<E: Element> Block<'_, E> {
    #[inline(always)]
    fn taps<S: Simd, const WIDTH: usize>(self, simd: S) {
        let Self { operands, segment, channels, scratch } = self;
        let problem = operands.problem;
        let Segment { sequence, tokens } = segment;
        let total = problem.sequences.range(sequence).len();
        let (len, count) = (problem.state_len, tokens.len());
        let Scratch { x, y, rounded } = scratch;
        let x = x.of_len(WIDTH - 1 + count);
        let y = y.of_len(count);
        for channel in channels {
            let row = (sequence * problem.channels + channel) * total;
            let Some(slot) = problem.slots.of(sequence) else {
                // SAFETY: this block alone has these tokens and channels of o.
                unsafe { operands.o.slice(row + tokens.start..row + tokens.end) }
                    .fill(E::default());
                continue;
            };
            let state = (slot * problem.channels + channel) * len..;
            let state = state.start..state.start + len;
            let before = operands.initial_state.map(|initial| &initial[state.clone()]);
            // The token `age` tokens before the sequence.
            let old = |age: usize| match before {
                Some(before) => before[problem.state_column(sequence, age)],
                None => 0.0,
            };
            for age in 1..WIDTH {
                let to = &mut x[WIDTH - 1 - age..WIDTH - age];
                match tokens.start.checked_sub(age) {
                    Some(token) => E::widen(&operands.x[row + token..=row + token], to),
                    None => to[0] = old(age - tokens.start),
                }
            }
            let from = &operands.x[row + tokens.start..row + tokens.end];
            widen(simd, from, &mut x[WIDTH - 1..]);
            let taps: [f32; WIDTH] =
                std::array::from_fn(|tap| operands.weight[tap * problem.channels + channel]);
            let bias = operands.bias[channel];
            sum(simd, &taps, bias, problem.activation, x, y);
            // SAFETY: this block alone has these tokens and channels of o.
            unsafe { operands.write(simd, y, row + tokens.start, rounded) };
            if tokens.end == total {
                // SAFETY: no other sequence has this slot, no other block this channel of it.
                let after = unsafe { operands.states.slice(state) };
                for age in 1..=len {
                    let to = match &problem.ring {
                        None => len - age,
                        Some(positions) => (positions[sequence] + total + len - age) % len,
                    };
                    let to = &mut after[to..=to];
                    match total.checked_sub(age) {
                        Some(token) => E::widen(&operands.x[row + token..=row + token], to),
                        None => to[0] = old(age - total),
                    }
                }
            }
        }
    }
}

/// `y_t = activation(bias + sum over taps of taps_w x_(t + w))`; x has `WIDTH - 1` more elements than y.
///
/// # Panics
/// When the length of x differs.
#[inline(always)]
fn sum<S: Simd, const WIDTH: usize>(
    simd: S,
    taps: &[f32; WIDTH],
    bias: f32,
    activation: Activation,
    x: &[f32],
    y: &mut [f32],
) {
    assert_eq!(x.len(), y.len() + WIDTH - 1, "history and tokens");
    let mut splat = [simd.splat(0.0); WIDTH];
    for (splat, tap) in splat.iter_mut().zip(taps) {
        *splat = simd.splat(*tap);
    }
    let bias = simd.splat(bias);
    let whole = y.len() / S::LANES * S::LANES;
    // SAFETY: the tap w of the vector at `at` ends at `at + w + LANES <= y.len() + W - 1`.
    unsafe {
        for at in (0..whole).step_by(S::LANES) {
            let mut sum = bias;
            for (w, tap) in splat.iter().enumerate() {
                sum = simd.fma(*tap, simd.load(x.as_ptr().add(at + w)), sum);
            }
            simd.store(y.as_mut_ptr().add(at), activate(simd, activation, sum));
        }
        let rest = y.len() - whole;
        if rest > 0 {
            let mut sum = bias;
            for (w, tap) in splat.iter().enumerate() {
                sum = simd.fma(*tap, simd.load_first(x.as_ptr().add(whole + w), rest), sum);
            }
            simd.store_first(y.as_mut_ptr().add(whole), activate(simd, activation, sum), rest);
        }
    }
}
