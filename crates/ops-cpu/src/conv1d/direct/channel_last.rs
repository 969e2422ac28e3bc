//! `[B, T, C]` and packed `[total, C]`: vectors over channels.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers; blocks write disjoint parts.

use super::step::{self, Step};
use super::{Operands, Segment, TAPS, activate, states};
use crate::aligned::Aligned;
use crate::floats::widen;
use crate::simd::{Simd, SimdKernel, dispatch};
use crate::stream::prefetch;
use device::{Device, Isa};
use ops::Element;
use ops::conv1d::Activation;
use std::ops::Range;

/// Channels of a block: its recent tokens, results and taps in float32 about fill a 32 KiB L1.
const CHANNELS: usize = 512;
/// Tokens of a block; the W - 1 before them are read again.
const TOKENS: usize = 256;
/// Tokens whose sums share one load of the taps.
const STRIP: usize = 4;
/// Recent tokens kept as float32: a power of two, at least `STRIP + TAPS - 1`.
const RECENT: usize = 8;

/// Launches the blocks: segments of tokens times tiles of channels, then the state slots that no sequence uses.
pub(super) fn launch<E: Element>(
    isa: Isa,
    kernel: &str,
    operands: &Operands<'_, E>,
    device: &Device,
) {
    let problem = operands.problem;
    let tiles = problem.channels.div_ceil(CHANNELS);
    let segments = Segment::of(problem, TOKENS);
    let untouched = problem.slots.untouched();
    let blocks = segments.len() * tiles;
    let grid = blocks + untouched.len() * tiles;
    device.launch_streaming(kernel, grid, Scratch::<E>::default, |scratch, block| {
        let first = block % tiles * CHANNELS;
        let channels = first..(first + CHANNELS).min(problem.channels);
        match block.checked_sub(blocks) {
            None => {
                let segment = segments[block / tiles].clone();
                dispatch(isa, Block { operands, segment, channels, scratch });
            }
            // SAFETY: no sequence has this slot, and this block alone has these channels of it.
            Some(rest) => unsafe { copy_unused_slot(operands, untouched[rest / tiles], channels) },
        }
    });
}

/// Copies the state of a slot that no sequence uses.
///
/// # Safety
/// Nothing else may have these channels of the slot.
pub(super) unsafe fn copy_unused_slot<E: Element>(
    operands: &Operands<'_, E>,
    slot: usize,
    channels: Range<usize>,
) {
    let range = states::range(operands.problem, slot, &channels);
    // SAFETY: the caller's contract.
    let out = unsafe { operands.states.slice(range.clone()) };
    match operands.initial_state {
        Some(initial) => out.copy_from_slice(&initial[range]),
        None => out.fill(0.0),
    }
}

/// Buffers of one thread.
struct Scratch<E> {
    /// Tokens before the sequence, `[S, channels]`, the oldest first.
    before: Aligned,
    /// Ring buffer of the last tokens, `[RECENT, channels]`: token t is in row t mod RECENT.
    recent: Aligned,
    /// The tokens of the sequence that its final state holds.
    after: Aligned,
    /// Sums, `[STRIP, channels]`.
    y: Aligned,
    rounded: Vec<E>,
}

impl<E> Default for Scratch<E> {
    fn default() -> Self {
        Self {
            before: Aligned::default(),
            recent: Aligned::default(),
            after: Aligned::default(),
            y: Aligned::default(),
            rounded: Vec::new(),
        }
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
        let all = problem.sequences.range(sequence);
        let width = channels.len();
        let at = |token: usize| (all.start + token) * problem.channels + channels.start;
        let Some(slot) = problem.slots.of(sequence) else {
            for token in tokens {
                // SAFETY: this block alone has these tokens and channels of o.
                unsafe { operands.o.slice(at(token)..at(token) + width) }.fill(E::default());
            }
            return;
        };
        let Scratch { before, recent, after, y, rounded } = scratch;
        if all.len() == 1 && step::fits(operands) {
            let x = operands.row(simd, at(0), recent.of_len(width));
            // SAFETY: no other sequence has this slot, no other block these channels of it or of o.
            unsafe {
                let step = Step::new(operands, slot, channels.clone());
                match operands.row_past_caches(at(0), width) {
                    Some(o) => step.run::<S, true>(simd, x, o),
                    None => {
                        let y = y.of_len(width);
                        step.run::<S, false>(simd, x, y);
                        operands.write(simd, y, at(0), rounded);
                    }
                }
            }
            return;
        }
        let len = problem.state_len;
        let last = tokens.end == all.len();
        let before = before.of_len(len * width);
        // The state is read where the taps of the first tokens or the final state reach back before the sequence.
        if tokens.start < WIDTH - 1 || last && all.len() < len {
            states::read(operands, sequence, slot, channels.clone(), before);
        }
        let recent = recent.of_len(RECENT * width);
        for age in 1..WIDTH {
            let row = &mut recent[(tokens.start + RECENT - age) % RECENT * width..][..width];
            match tokens.start.checked_sub(age) {
                Some(token) => widen(simd, &operands.x[at(token)..at(token) + width], row),
                None => {
                    let from = (len + tokens.start - age) * width;
                    row.copy_from_slice(&before[from..from + width]);
                }
            }
        }
        let y = y.of_len(STRIP * width);
        for start in tokens.clone().step_by(STRIP) {
            let count = STRIP.min(tokens.end - start);
            for token in start..start + count {
                let row = &mut recent[token % RECENT * width..][..width];
                widen(simd, &operands.x[at(token)..at(token) + width], row);
            }
            for token in start + STRIP..(start + 2 * STRIP).min(tokens.end) {
                prefetch(&operands.x[at(token)..at(token) + width]);
            }
            let strip = Strip {
                weight: &operands.weight[channels.start..],
                stride: problem.channels,
                bias: &operands.bias[channels.clone()],
                activation: problem.activation,
                recent,
                start,
            };
            if count == STRIP {
                strip.sum::<S, WIDTH, STRIP>(simd, y);
            } else {
                for token in 0..count {
                    let one = Strip { start: start + token, ..strip.clone() };
                    one.sum::<S, WIDTH, 1>(simd, &mut y[token * width..]);
                }
            }
            for (row, token) in y.chunks_exact(width).zip(start..start + count) {
                // SAFETY: this block alone has these tokens and channels of o.
                unsafe { operands.write(simd, row, at(token), rounded) };
            }
        }
        if last {
            // The last S tokens: from x, and from the state where the sequence is shorter.
            let fresh = all.len().min(len);
            let after = after.of_len(fresh * width);
            for (row, token) in after.chunks_exact_mut(width).zip(all.len() - fresh..) {
                widen(simd, &operands.x[at(token)..at(token) + width], row);
            }
            let range = states::range(problem, slot, &channels);
            // SAFETY: no other sequence has this slot, no other block these channels of it.
            let out = unsafe { operands.states.slice(range) };
            let row = |row: usize| match (row + fresh).checked_sub(len) {
                Some(token) => &after[token * width..][..width],
                None => &before[(row + fresh) * width..][..width],
            };
            states::write(problem, sequence, all.len(), width, row, out);
        }
    }
}

/// Consecutive tokens of some channels, in [`Scratch::recent`] with those before them.
#[derive(Clone)]
struct Strip<'a> {
    /// The taps of the first of these channels, `[W, C]` from there on.
    weight: &'a [f32],
    /// Distance of two taps.
    stride: usize,
    bias: &'a [f32],
    activation: Activation,
    recent: &'a [f32],
    start: usize,
}

impl Strip<'_> {
    /// Sums of `COUNT` tokens into the rows of `y`.
    ///
    /// # Panics
    /// When a slice is too short for the channels that `bias` has.
    #[inline(always)]
    fn sum<S: Simd, const WIDTH: usize, const COUNT: usize>(&self, simd: S, y: &mut [f32]) {
        let width = self.bias.len();
        assert!(y.len() >= COUNT * width && self.recent.len() >= RECENT * width);
        assert!(self.weight.len() >= (WIDTH - 1) * self.stride + width);
        // Rows of tokens start - (W - 1) and on.
        let rows: [*const f32; RECENT] = std::array::from_fn(|row| {
            let token = self.start + RECENT + row - (WIDTH - 1);
            self.recent[token % RECENT * width..].as_ptr()
        });
        let mut at = 0;
        while at < width {
            let count = S::LANES.min(width - at);
            // SAFETY: `count` values from `at` on are inside every row and every tap, asserted above.
            unsafe {
                if count == S::LANES {
                    self.vector::<S, WIDTH, COUNT, true>(simd, &rows, at, count, y);
                } else {
                    self.vector::<S, WIDTH, COUNT, false>(simd, &rows, at, count, y);
                }
            }
            at += count;
        }
    }

    /// The sums of `count` channels from `at` on; `WHOLE` when they fill a vector. There are no closures here: one
    /// that holds vector operations is compiled for the baseline unless it is small.
    ///
    /// # Safety
    /// `at + count` must not exceed the channels of any row or tap.
    #[inline(always)]
    unsafe fn vector<S: Simd, const WIDTH: usize, const COUNT: usize, const WHOLE: bool>(
        &self,
        simd: S,
        rows: &[*const f32; RECENT],
        at: usize,
        count: usize,
        y: &mut [f32],
    ) {
        let width = self.bias.len();
        // SAFETY: the caller's contract.
        unsafe {
            let bias = load::<S, WHOLE>(simd, self.bias.as_ptr().add(at), count);
            let mut sums = [bias; COUNT];
            for tap in 0..WIDTH {
                let weight = self.weight.as_ptr().add(tap * self.stride + at);
                let weight = load::<S, WHOLE>(simd, weight, count);
                for (token, sum) in sums.iter_mut().enumerate() {
                    let x = load::<S, WHOLE>(simd, rows[token + tap].add(at), count);
                    *sum = simd.fma(weight, x, *sum);
                }
            }
            for (token, sum) in sums.into_iter().enumerate() {
                let sum = activate(simd, self.activation, sum);
                let to = y.as_mut_ptr().add(token * width + at);
                if WHOLE {
                    simd.store(to, sum);
                } else {
                    simd.store_first(to, sum, count);
                }
            }
        }
    }
}

/// # Safety
/// As [`Simd::load`] when `WHOLE`, else as [`Simd::load_first`].
#[inline(always)]
unsafe fn load<S: Simd, const WHOLE: bool>(simd: S, from: *const f32, count: usize) -> S::V {
    // SAFETY: the caller's contract.
    unsafe { if WHOLE { simd.load(from) } else { simd.load_first(from, count) } }
}
