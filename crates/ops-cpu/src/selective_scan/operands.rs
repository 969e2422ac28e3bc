//! A call's tensors as the fast variants read them, the split of a call into blocks, and the code that all variants share.
#![allow(unsafe_code)] // Blocks write disjoint parts of the outputs.

use crate::fast_math;
use crate::floats::{as_f32, widen};
use crate::simd::{Simd, SimdKernel, dispatch, math};
use device::{Device, Isa, SharedMut};
use ops::selective_scan::SelectiveScanProblem;
use ops::{Element, Inputs, TensorMap, elements, elements_mut, floats};
use std::borrow::Cow;
use std::ops::Range;

/// Blocks that let 16 cores share a call evenly.
const ENOUGH_BLOCKS: usize = 64;
/// State values that a block keeps between tokens; with the same number of rates, half of a 32 KiB L1.
const TILE_VALUES: usize = 2048;
/// Minimum number of channels of a block: a cache line of float32, which is whole vectors of any instruction set.
const LINE: usize = 16;

/// The tensors of one call.
pub(super) struct Operands<'a, E> {
    pub(super) problem: &'a SelectiveScanProblem,
    /// `[total, E]`.
    pub(super) u: &'a [E],
    /// `[total, E]`.
    pub(super) delta: Stored<'a, E>,
    /// `[E, N]`.
    pub(super) rates: Cow<'a, [f32]>,
    /// `[total, G, N]`.
    pub(super) b: &'a [E],
    /// `[total, G, N]`.
    pub(super) c: &'a [E],
    /// `[total, E]`.
    pub(super) z: Option<&'a [E]>,
    /// `[E]`; zeros without D.
    pub(super) d: Cow<'a, [f32]>,
    /// `[E]`; zeros without one.
    pub(super) bias: Cow<'a, [f32]>,
    /// `[slots, E, N]`.
    pub(super) initial_state: Option<&'a [f32]>,
}

/// Values in float32 or in the storage type.
pub(super) enum Stored<'a, E> {
    Wide(&'a [f32]),
    Narrow(&'a [E]),
}

impl<E: Element> Stored<'_, E> {
    #[inline(always)]
    pub(super) fn widen<S: Simd>(&self, simd: S, range: Range<usize>, to: &mut [f32]) {
        match self {
            Self::Wide(values) => to.copy_from_slice(&values[range]),
            Self::Narrow(values) => widen(simd, &values[range], to),
        }
    }
}

impl<'a, E: Element> Operands<'a, E> {
    pub(super) fn read(problem: &'a SelectiveScanProblem, inputs: Inputs<'a>) -> Self {
        let by_channel = |name: &str| match inputs.get(name) {
            Some(values) => floats(values),
            None => Cow::Owned(vec![0.0; problem.channels]),
        };
        let delta = inputs.tensor("delta");
        Self {
            problem,
            u: elements(inputs.tensor("u")),
            delta: match delta.view() {
                Some(wide) => Stored::Wide(wide),
                None => Stored::Narrow(elements(delta)),
            },
            rates: floats(inputs.tensor("A")),
            b: elements(inputs.tensor("B")),
            c: elements(inputs.tensor("C")),
            z: inputs.get("z").map(elements),
            d: by_channel("D"),
            bias: by_channel("delta_bias"),
            initial_state: inputs.get("initial_state").map(elements),
        }
    }

    /// One token's row of B or C, which a block's channels share: borrowed if it is float32, else widened.
    #[inline(always)]
    pub(super) fn projection<'b, S: Simd>(
        &self,
        simd: S,
        of: &'b [E],
        (token, group): (usize, usize),
        wide: &'b mut [f32],
    ) -> &'b [f32] {
        let n = self.problem.state_dim;
        let start = (token * self.problem.groups + group) * n;
        if let Some(of) = as_f32(of) {
            return &of[start..start + n];
        }
        widen(simd, &of[start..start + n], wide);
        wide
    }

    /// Step sizes of a vector of channels.
    #[inline(always)]
    pub(super) fn step<S: Simd>(&self, simd: S, raw: S::V, bias: S::V) -> S::V {
        let raw = simd.add(raw, bias);
        if self.problem.delta_softplus { math::softplus(simd, raw) } else { raw }
    }

    /// Runs the blocks of a call by a scheme, each with buffers of its thread.
    fn launch<T: Scan>(&self, isa: Isa, kernel: &str, device: &Device, outputs: &mut TensorMap) {
        let problem = self.problem;
        let grid = Grid::of(problem);
        let mut o = outputs.remove("o");
        {
            let states = SharedMut::new(elements_mut::<f32>(outputs.get_mut("final_state")));
            let o = SharedMut::new(elements_mut::<E>(o.as_mut()));
            let untouched = problem.slots.untouched();
            let of_sequence = problem.groups * grid.splits;
            let blocks = problem.sequences.count() * of_sequence;
            device.launch(kernel, blocks + untouched.len(), T::default, |scheme, block| {
                if let Some(rest) = block.checked_sub(blocks) {
                    let of_slot = problem.channels * problem.state_dim;
                    let range = untouched[rest] * of_slot..(untouched[rest] + 1) * of_slot;
                    // SAFETY: no sequence has this slot, and this block alone keeps it.
                    let to = unsafe { states.slice(range.clone()) };
                    return self.begin(range.start, to);
                }
                let (sequence, part) = (block / of_sequence, block % of_sequence);
                let (group, first) = (part / grid.splits, part % grid.splits * grid.width);
                let of_group = problem.channels_per_group();
                let channels =
                    group * of_group + first..group * of_group + (first + grid.width).min(of_group);
                let tokens = problem.sequences.range(sequence);
                let Some(slot) = problem.slots.of(sequence) else {
                    for token in tokens {
                        let at = token * problem.channels;
                        // SAFETY: this block alone has these channels of o.
                        unsafe { o.slice(at + channels.start..at + channels.end) }
                            .fill(E::default());
                    }
                    return;
                };
                let at = (slot * problem.channels + channels.start) * problem.state_dim;
                let len = channels.len() * problem.state_dim;
                // SAFETY: no other sequence has this slot, no other block these channels of it.
                let state = unsafe { states.slice(at..at + len) };
                if tokens.is_empty() {
                    return self.begin(at, state);
                }
                let block = Block { operands: self, tokens, group, channels, at, state, o: &o };
                dispatch(isa, Scanned { scheme, block });
            });
        }
        outputs.extend(o.map(|o| ("o".to_owned(), o)));
    }

    /// Writes a part of the initial states, from offset `at` in the pool on; zeros without initial states.
    #[inline(always)]
    pub(super) fn begin(&self, at: usize, to: &mut [f32]) {
        match self.initial_state {
            Some(initial) => to.copy_from_slice(&initial[at..at + to.len()]),
            None => to.fill(0.0),
        }
    }
}

/// A scheme: computes a block with the buffers of its thread.
pub(super) trait Scan: Default {
    /// The reason if this scheme does not support a problem.
    fn why_not(_: &SelectiveScanProblem) -> Option<String> {
        None
    }

    /// Writes a block's part of o, and its final states. Implement as `#[inline(always)]`.
    fn scan<S: Simd, E: Element>(&mut self, simd: S, block: Block<'_, E>);

    /// Runs the variant whose kernel name is `kernel`.
    fn run<E: Element>(
        isa: Isa,
        kernel: &str,
        problem: &SelectiveScanProblem,
        inputs: Inputs<'_>,
        device: &Device,
        outputs: &mut TensorMap,
    ) {
        Operands::<E>::read(problem, inputs).launch::<Self>(isa, kernel, device, outputs);
    }
}

struct Scanned<'a, T, E> {
    scheme: &'a mut T,
    block: Block<'a, E>,
}

impl<T: Scan, E: Element> SimdKernel for Scanned<'_, T, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.scheme.scan(simd, self.block);
    }
}

/// The split of a call into blocks: a sequence and some channels of a group each. It depends only on the problem, so results do
/// not depend on the number of threads.
struct Grid {
    width: usize,
    splits: usize,
}

impl Grid {
    fn of(problem: &SelectiveScanProblem) -> Self {
        let whole = problem.channels_per_group();
        let units = (problem.sequences.count() * problem.groups).max(1);
        let fair = whole.div_ceil(ENOUGH_BLOCKS.div_ceil(units));
        let most = TILE_VALUES / problem.state_dim.max(1);
        let width = fair.min(most).next_multiple_of(LINE).min(whole).max(1);
        Self { width, splits: whole.div_ceil(width) }
    }
}

/// The work of one block: a sequence that has tokens, and some channels of a group.
pub(super) struct Block<'a, E> {
    pub(super) operands: &'a Operands<'a, E>,
    pub(super) tokens: Range<usize>,
    pub(super) group: usize,
    pub(super) channels: Range<usize>,
    /// Offset of its states in the pool, in values.
    pub(super) at: usize,
    /// Its final states `[channels, N]`.
    pub(super) state: &'a mut [f32],
    o: &'a SharedMut<'a, E>,
}

impl<E: Element> Block<'_, E> {
    /// Its channels of a token in u, delta, z and o.
    pub(super) fn row(&self, token: usize) -> Range<usize> {
        let at = token * self.operands.problem.channels;
        at + self.channels.start..at + self.channels.end
    }

    /// Its channels of a token in o.
    #[allow(clippy::mut_from_ref)] // As `SharedMut::slice`, whose contract it keeps.
    pub(super) fn output(&self, token: usize) -> &mut [E] {
        // SAFETY: no other block has these channels of this sequence's tokens, and a block takes one token after the other.
        unsafe { self.o.slice(self.row(token)) }
    }
}

/// `y + d u`, times `silu(z)` where there is a gate.
#[inline(always)]
pub(super) fn finish<S: Simd>(simd: S, y: S::V, u: S::V, d: S::V, z: Option<S::V>) -> S::V {
    let y = simd.fma(d, u, y);
    match z {
        Some(z) => simd.mul(y, fast_math::silu(simd, z)),
        None => y,
    }
}
