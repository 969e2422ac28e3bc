//! Direct convolution that reads each token from memory once: vectors over channels if those are contiguous, else over
//! time.
#![allow(unsafe_code)] // Blocks write disjoint parts of o and of the states.

pub(super) mod backward;
mod channel_first;
mod channel_last;
mod states;
mod step;

use crate::fast_math;
use crate::floats::{narrow, widen};
use crate::simd::Simd;
use crate::stream::{STREAM_BYTES, stream_copy};
use device::{Device, Isa, SharedMut};
use ops::conv1d::{Activation, Conv1dProblem, Layout};
use ops::{DType, Element, Inputs, Tensor, TensorMap, elements, elements_mut, floats};
use std::ops::Range;

/// f32 values of a cache line, which are whole vectors of any instruction set.
const LINE: usize = 16;
/// The widest convolution.
const TAPS: usize = 4;

/// Nothing: this scheme supports every problem.
pub(super) fn why_not(_: &Conv1dProblem) -> Option<String> {
    None
}

/// The tensors of one call.
struct Operands<'a, E> {
    problem: &'a Conv1dProblem,
    /// `[total, C]` or `[B, C, T]`.
    x: &'a [E],
    /// `[W, C]`: the taps of neighbouring channels are contiguous.
    weight: Vec<f32>,
    /// `[C]`.
    bias: Vec<f32>,
    /// `[slots, C, S]`.
    initial_state: Option<&'a [f32]>,
    o: SharedMut<'a, E>,
    states: SharedMut<'a, f32>,
    /// Whether o is large enough for non-temporal stores.
    stream: bool,
    /// Whether the states are large enough for non-temporal stores.
    stream_states: bool,
}

impl<'a, E: Element> Operands<'a, E> {
    /// Values of x as float32: borrowed where they are, else widened into `wide`.
    #[inline(always)]
    fn row<'b, S: Simd>(&self, simd: S, at: usize, wide: &'b mut [f32]) -> &'b [f32]
    where
        Self: 'b,
    {
        let x = &self.x[at..at + wide.len()];
        if E::DTYPE == DType::F32 {
            // SAFETY: the type is float32, as just compared; the tensor outlives `self`.
            return unsafe { std::slice::from_raw_parts(x.as_ptr().cast(), x.len()) };
        }
        widen(simd, x, wide);
        wide
    }

    /// A row of o for non-temporal stores of computed vectors: float32 and whole cache lines, else `None`.
    ///
    /// # Safety
    /// Nothing else may have this range of o.
    unsafe fn row_past_caches(&self, at: usize, width: usize) -> Option<&'a mut [f32]> {
        // SAFETY: the caller's contract.
        let o = unsafe { self.o.slice(at..at + width) };
        let whole = width.is_multiple_of(LINE) && o.as_ptr().addr().is_multiple_of(64);
        if E::DTYPE != DType::F32 || !self.stream || !whole {
            return None;
        }
        // SAFETY: the type is float32, as just compared.
        Some(unsafe { std::slice::from_raw_parts_mut(o.as_mut_ptr().cast(), width) })
    }

    /// Writes one row of results, rounded; `rounded` is scratch.
    ///
    /// # Safety
    /// Nothing else may have this range of o.
    #[inline(always)]
    unsafe fn write<S: Simd>(&self, simd: S, y: &[f32], at: usize, rounded: &mut Vec<E>) {
        // SAFETY: the caller's contract.
        let o = unsafe { self.o.slice(at..at + y.len()) };
        if self.stream {
            rounded.resize(y.len(), E::default());
            narrow(simd, y, rounded);
            stream_copy(simd, rounded, o);
        } else {
            narrow(simd, y, o);
        }
    }
}

/// The activation over a vector.
#[inline(always)]
fn activate<S: Simd>(simd: S, activation: Activation, y: S::V) -> S::V {
    match activation {
        Activation::None => y,
        Activation::Silu => fast_math::silu(simd, y),
    }
}

/// Consecutive tokens of one sequence, counted from its start.
#[derive(Debug, Clone)]
struct Segment {
    sequence: usize,
    tokens: Range<usize>,
}

impl Segment {
    /// Every sequence split into segments of at most `len` tokens. An empty sequence has one empty segment, which
    /// copies its state. The split depends only on the problem, and so do the results.
    fn of(problem: &Conv1dProblem, len: usize) -> Vec<Self> {
        let mut segments = Vec::new();
        for (sequence, tokens) in problem.sequences.iter().enumerate() {
            let total = tokens.len();
            for start in (0..total.max(1)).step_by(len) {
                let tokens = start..(start + len).min(total);
                segments.push(Self { sequence, tokens });
            }
        }
        segments
    }
}

/// Transposes taps `[C, W]` to `[W, C]`. In a decode step this is as much work as the convolution, so it must vectorize.
fn by_tap<const WIDTH: usize>(by_channel: &[f32]) -> Vec<f32> {
    let (channels, _) = by_channel.as_chunks::<WIDTH>();
    let mut taps = vec![0f32; by_channel.len()];
    for tap in 0..WIDTH {
        let row = &mut taps[tap * channels.len()..][..channels.len()];
        row.iter_mut().zip(channels).for_each(|(to, channel)| *to = channel[tap]);
    }
    taps
}

/// Runs the variant whose kernel name is `kernel`.
pub(super) fn run<E: Element>(
    isa: Isa,
    kernel: &str,
    problem: &Conv1dProblem,
    inputs: Inputs<'_>,
    device: &Device,
    outputs: &mut TensorMap,
) {
    let (channels, width) = (problem.channels, problem.width);
    let by_channel = floats(inputs.tensor("weight"));
    let weight = match width {
        2 => by_tap::<2>(&by_channel),
        3 => by_tap::<3>(&by_channel),
        _ => by_tap::<TAPS>(&by_channel),
    };
    let (mut o, mut kept) = (outputs.remove("o"), outputs.remove("final_state"));
    // States in x's type are widened when read and rounded when written: they are few tokens.
    let narrow = problem.state_dtype != DType::F32;
    let initial = inputs.get("initial_state").map(floats);
    let mut wide = vec![0f32; kept.as_ref().filter(|_| narrow).map_or(0, Tensor::len)];
    {
        let o = elements_mut::<E>(o.as_mut());
        let stream = size_of_val(o) >= STREAM_BYTES;
        let states = if narrow { &mut wide[..] } else { elements_mut::<f32>(kept.as_mut()) };
        let operands = Operands::<E> {
            problem,
            x: elements(inputs.tensor("x")),
            weight,
            bias: match inputs.get("bias") {
                Some(bias) => floats(bias).into_owned(),
                None => vec![0.0; channels],
            },
            initial_state: initial.as_deref(),
            o: SharedMut::new(o),
            stream,
            stream_states: size_of_val(states) >= STREAM_BYTES,
            states: SharedMut::new(states),
        };
        // With one token per sequence both layouts are equal, and channels are contiguous.
        if problem.layout == Layout::ChannelFirst && problem.sequences.longest() > 1 {
            channel_first::launch(isa, kernel, &operands, device);
        } else {
            channel_last::launch(isa, kernel, &operands, device);
        }
    }
    if narrow {
        E::narrow(&wide, elements_mut::<E>(kept.as_mut()));
    }
    let both = [("o", o), ("final_state", kept)];
    outputs.extend(both.into_iter().filter_map(|(name, tensor)| Some((name.to_owned(), tensor?))));
}
