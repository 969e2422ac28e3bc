//! A decode step: one token of one sequence, width 4 over a state of three tokens. The state is read once and written
//! once, and its triples are split and joined in registers.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers.

use super::{LINE, Operands, TAPS, activate};
use crate::simd::Simd;
use ops::Element;
use std::ops::Range;

/// Tokens of the state.
const LEN: usize = TAPS - 1;
/// Lanes of the widest vector.
const WIDEST: usize = 16;

/// Whether a call's one-token sequences can be computed here.
pub(super) fn fits<E: Element>(operands: &Operands<'_, E>) -> bool {
    let problem = operands.problem;
    problem.width == TAPS
        && problem.state_len == LEN
        && problem.ring.is_none()
        && operands.initial_state.is_some()
}

/// One token's tensors for some channels; every row has as many values as `bias`, every state three times as many.
pub(super) struct Step<'a, E> {
    operands: &'a Operands<'a, E>,
    /// The taps of these channels.
    taps: [&'a [f32]; TAPS],
    bias: &'a [f32],
    before: &'a [f32],
    after: &'a mut [f32],
}

impl<'a, E: Element> Step<'a, E> {
    /// The step of the channels of a slot.
    ///
    /// # Safety
    /// Nothing else may have these channels of the slot's final state.
    pub(super) unsafe fn new(
        operands: &'a Operands<'a, E>,
        slot: usize,
        channels: Range<usize>,
    ) -> Self {
        let state = super::states::range(operands.problem, slot, &channels);
        let taps = std::array::from_fn(|tap| {
            &operands.weight[tap * operands.problem.channels..][channels.clone()]
        });
        Self {
            operands,
            taps,
            bias: &operands.bias[channels],
            before: &operands.initial_state.unwrap_or_default()[state.clone()],
            // SAFETY: the caller's contract.
            after: unsafe { operands.states.slice(state) },
        }
    }

    /// Computes the step: `x` is the token in float32, `y` receives the result, by non-temporal stores with `STREAM`.
    ///
    /// # Panics
    /// When `x` or `y` does not have as many values as there are channels, or to `STREAM` is not whole lines.
    #[inline(always)]
    pub(super) fn run<S: Simd, const STREAM: bool>(mut self, simd: S, x: &[f32], y: &mut [f32]) {
        let channels = self.bias.len();
        assert_eq!([x.len(), y.len()], [channels; 2], "channels of a step");
        assert_eq!([self.before.len(), self.after.len()], [channels * LEN; 2]);
        let is_lines = |start: *const f32| start.addr().is_multiple_of(LINE * size_of::<f32>());
        assert!(!STREAM || (is_lines(y.as_ptr()) && channels.is_multiple_of(LINE)));
        let lines = is_lines(self.after.as_ptr());
        let whole = channels / S::LANES * S::LANES;
        // SAFETY: `whole` channels are inside every row; streamed vectors start where lines or their halves do.
        unsafe {
            if self.operands.stream_states && lines {
                self.vectors::<S, true, STREAM>(simd, whole, x, y);
            } else {
                self.vectors::<S, false, STREAM>(simd, whole, x, y);
            }
        }
        self.rest(simd, whole, x, y);
    }

    /// # Safety
    /// `whole` must be a multiple of the lanes and not exceed the channels. To `STREAM` the state, `after` must start
    /// a line, and to stream `y`, `y` must.
    #[inline(always)]
    unsafe fn vectors<S: Simd, const STREAM: bool, const STREAM_Y: bool>(
        &mut self,
        simd: S,
        whole: usize,
        x: &[f32],
        y: &mut [f32],
    ) {
        let after = self.after.as_mut_ptr();
        for at in (0..whole).step_by(S::LANES) {
            // SAFETY: the caller's contract; `run` asserted the lengths.
            unsafe {
                let before = self.before.as_ptr().add(at * LEN);
                let member = |vector: usize| simd.load(before.add(vector * S::LANES));
                let [s0, s1, s2] = simd.split_triples([member(0), member(1), member(2)]);
                let x = simd.load(x.as_ptr().add(at));
                let tap = |tap: usize| simd.load(self.taps[tap].as_ptr().add(at));
                let mut sum = simd.fma(tap(0), s0, simd.load(self.bias.as_ptr().add(at)));
                sum = simd.fma(tap(1), s1, sum);
                sum = simd.fma(tap(2), s2, sum);
                sum = simd.fma(tap(3), x, sum);
                let sum = activate(simd, self.operands.problem.activation, sum);
                put::<S, STREAM_Y>(simd, y.as_mut_ptr().add(at), sum);
                let [a, b, c] = simd.join_triples([s1, s2, x]);
                let to = after.add(at * LEN);
                put::<S, STREAM>(simd, to, a);
                put::<S, STREAM>(simd, to.add(S::LANES), b);
                put::<S, STREAM>(simd, to.add(2 * S::LANES), c);
            }
        }
    }

    /// The channels from `whole` on, fewer than a vector has.
    #[inline(always)]
    fn rest<S: Simd>(self, simd: S, whole: usize, x: &[f32], y: &mut [f32]) {
        let mut sums = [0f32; WIDEST];
        let rest = whole..self.bias.len();
        for ((sum, x), channel) in sums.iter_mut().zip(&x[whole..]).zip(rest.clone()) {
            let state = &self.before[channel * LEN..][..LEN];
            *sum = self.bias[channel];
            for (taps, value) in self.taps.iter().zip(state.iter().chain([x])) {
                *sum = taps[channel].mul_add(*value, *sum);
            }
            self.after[channel * LEN..][..LEN].copy_from_slice(&[state[1], state[2], *x]);
        }
        if !rest.is_empty() {
            // SAFETY: there are as many sums as the widest vector has lanes.
            unsafe {
                let sum = simd.load(sums.as_ptr());
                let y = y[whole..].as_mut_ptr();
                let sum = activate(simd, self.operands.problem.activation, sum);
                simd.store_first(y, sum, rest.len());
            }
        }
    }
}

/// # Safety
/// As [`Simd::stream`] with `PAST_CACHES`, else as [`Simd::store`].
#[inline(always)]
unsafe fn put<S: Simd, const PAST_CACHES: bool>(simd: S, to: *mut f32, v: S::V) {
    // SAFETY: the caller's contract.
    unsafe { if PAST_CACHES { simd.stream(to, v) } else { simd.store(to, v) } }
}
