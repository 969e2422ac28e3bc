//! The gradient: a block is a segment of a sequence's tokens and a tile of channels, as float32 rows of channels.
//!
//! A block computes the activation's gradient of the W - 1 tokens after its own too, which also read its tokens. Gradients of weights are
//! summed over a block's tokens, then over segments in order. Blocks depend only on the problem, and so do the results.

use super::{Segment, TAPS, by_tap};
use crate::floats::{narrow, store, widen};
use crate::simd::{Simd, SimdKernel, dispatch, math};
use device::{Device, Isa, SharedMut};
use ops::conv1d::{Activation, Conv1dProblem, Layout};
use ops::{Element, GradientProblem, Inputs, Tensor, TensorMap, elements, elements_mut, floats};
use std::borrow::Cow;
use std::ops::Range;

/// Tokens of a segment.
const TOKENS: usize = 256;
/// Channels of a tile.
const CHANNELS: usize = 64;

/// Nothing: this scheme supports every problem.
pub(in crate::conv1d) fn why_not(_: &GradientProblem<Conv1dProblem>) -> Option<String> {
    None
}

/// The tensors of one call.
struct Operands<'a, E> {
    problem: &'a Conv1dProblem,
    segments: Vec<Segment>,
    /// `[total, C]` or `[B, C, T]`, as are `d_o` and `dx`.
    x: &'a [E],
    d_o: &'a [E],
    dx: SharedMut<'a, E>,
    /// `[W, C]`.
    weight: Vec<f32>,
    /// `[C]`.
    bias: Vec<f32>,
    /// `[Nseq, C, S]`, as are `dfinal` and `dinitial`, which is empty without an initial state.
    initial: Option<Cow<'a, [f32]>>,
    dfinal: Option<Cow<'a, [f32]>>,
    dinitial: SharedMut<'a, f32>,
    /// Sums over each segment's tokens: gradients of the taps, then of the bias, `[segments, W + 1, C]`.
    sums: SharedMut<'a, f32>,
}

/// Runs the variant whose kernel name is `kernel`.
pub(in crate::conv1d) fn run<E: Element>(
    isa: Isa,
    kernel: &str,
    problem: &GradientProblem<Conv1dProblem>,
    inputs: Inputs<'_>,
    device: &Device,
    outputs: &mut TensorMap,
) {
    let problem = &problem.forward;
    let (channels, width) = (problem.channels, problem.width);
    let by_channel = floats(inputs.tensor("weight"));
    let weight = match width {
        2 => by_tap::<2>(&by_channel),
        3 => by_tap::<3>(&by_channel),
        _ => by_tap::<TAPS>(&by_channel),
    };
    let segments = Segment::of(problem, TOKENS);
    let rows = width + 1;
    let mut sums = vec![0f32; segments.len() * rows * channels];
    let mut dinitial = vec![0f32; inputs.get("initial_state").map_or(0, Tensor::len)];
    let operands = Operands::<E> {
        problem,
        x: elements(inputs.tensor("x")),
        d_o: elements(inputs.tensor("do")),
        dx: SharedMut::new(elements_mut(outputs.get_mut("dx"))),
        weight,
        bias: inputs
            .get("bias")
            .map_or_else(|| vec![0.0; channels], |bias| floats(bias).into_owned()),
        initial: inputs.get("initial_state").map(floats),
        dfinal: inputs.get("dfinal_state").map(floats),
        dinitial: SharedMut::new(&mut dinitial),
        sums: SharedMut::new(&mut sums),
        segments,
    };
    let tiles = channels.div_ceil(CHANNELS);
    device.launch(kernel, operands.segments.len() * tiles, Scratch::default, |scratch, block| {
        let start = block % tiles * CHANNELS;
        let channels = start..(start + CHANNELS).min(channels);
        dispatch(isa, Block { operands: &operands, segment: block / tiles, channels, scratch });
    });
    let mut total = vec![0f64; rows * channels];
    for sum in sums.chunks(total.len().max(1)) {
        total.iter_mut().zip(sum).for_each(|(total, sum)| *total += f64::from(*sum));
    }
    if let Some(dweight) = outputs.get_mut("dweight") {
        let of_tap = |at: usize| total[at % width * channels + at / width];
        store(&(0..width * channels).map(of_tap).collect::<Vec<_>>(), dweight);
    }
    if let Some(dbias) = outputs.get_mut("dbias") {
        store(&total[width * channels..], dbias);
    }
    if let Some(tensor) = outputs.get_mut("dinitial_state") {
        store(&dinitial.iter().map(|value| f64::from(*value)).collect::<Vec<_>>(), tensor);
    }
}

/// Buffers of one thread, rows of a tile's channels.
#[derive(Default)]
struct Scratch {
    values: Vec<f32>,
    du: Vec<f32>,
    row: Vec<f32>,
    line: Vec<f32>,
}

struct Block<'a, E> {
    operands: &'a Operands<'a, E>,
    segment: usize,
    channels: Range<usize>,
    scratch: &'a mut Scratch,
}

impl<E: Element> SimdKernel for Block<'_, E> {
    type Output = ();

    #[inline(always)]
    #[allow(unsafe_code)] // Blocks write disjoint parts of the outputs.
    fn run<S: Simd>(self, simd: S) {
        let Self { operands, segment: number, channels, scratch } = self;
        let Operands { problem, .. } = operands;
        let Segment { sequence, tokens } = operands.segments[number].clone();
        let (width, state_len, count) = (problem.width, problem.state_len, channels.len());
        let history = width - 1;
        let len = problem.sequences.range(sequence).len();
        // The tokens that read this segment's.
        let end = (tokens.end + history).min(len);
        let Scratch { values, du, row, line } = scratch;
        let state = |channel: usize| (sequence * problem.channels + channel) * state_len;
        let taps = |tap: usize| &operands.weight[tap * problem.channels..][channels.clone()];

        // Row t + history - tokens.start has token t.
        let first = tokens.start.saturating_sub(history);
        let before = history - (tokens.start - first);
        values.clear();
        values.resize((end - tokens.start + history) * count, 0.0);
        if let Some(initial) = &operands.initial {
            for (age, values) in (1..=before).rev().zip(values.chunks_mut(count)) {
                for (value, channel) in values.iter_mut().zip(channels.clone()) {
                    *value = initial[state(channel) + state_len - age];
                }
            }
        }
        let at = (sequence, channels.clone());
        operands.read(simd, operands.x, &at, first..end, &mut values[before * count..], line);
        du.clear();
        du.resize((end - tokens.start) * count, 0.0);
        operands.read(simd, operands.d_o, &at, tokens.start..end, du, line);

        let mut sums = [0f32; (TAPS + 1) * CHANNELS];
        for (token, du) in du.chunks_mut(count).enumerate() {
            let value = |tap: usize| &values[(token + tap) * count..][..count];
            if problem.activation == Activation::Silu {
                row.clear();
                row.extend_from_slice(&operands.bias[channels.clone()]);
                for tap in 0..width {
                    add_product(row, taps(tap), value(tap));
                }
                through_silu(simd, du, row);
            }
            if tokens.start + token < tokens.end {
                for tap in 0..width {
                    add_product(&mut sums[tap * CHANNELS..][..count], du, value(tap));
                }
                let bias = &mut sums[width * CHANNELS..][..count];
                bias.iter_mut().zip(&*du).for_each(|(sum, du)| *sum += du);
            }
        }
        for (tap, sum) in sums.chunks(CHANNELS).take(width + 1).enumerate() {
            let start = (number * (width + 1) + tap) * problem.channels + channels.start;
            // SAFETY: this block alone has its segment and channels.
            let to = unsafe { operands.sums.slice(start..start + count) };
            to.copy_from_slice(&sum[..count]);
        }

        // The gradient of token t of the sequence; those before it have t < 0.
        let gradient = |token: isize, row: &mut [f32]| {
            row.fill(0.0);
            let kept = token - (len as isize - state_len as isize);
            if let (Some(dfinal), Ok(column)) = (&operands.dfinal, usize::try_from(kept)) {
                for (gradient, channel) in row.iter_mut().zip(channels.clone()) {
                    *gradient = dfinal[state(channel) + column];
                }
            }
            for tap in 0..width {
                let by = token + (history - tap) as isize - tokens.start as isize;
                let du = usize::try_from(by).ok().and_then(|by| du.chunks(count).nth(by));
                if let Some(du) = du {
                    add_product(row, taps(tap), du);
                }
            }
        };
        if operands.initial.is_some() && tokens.start == 0 {
            row.resize(count, 0.0);
            for column in 0..state_len {
                gradient(column as isize - state_len as isize, row);
                for (gradient, channel) in row.iter().zip(channels.clone()) {
                    let at = state(channel) + column;
                    // SAFETY: the first segment of a sequence alone has its state.
                    unsafe { operands.dinitial.slice(at..at + 1) }.fill(*gradient);
                }
            }
        }
        // The values are no longer needed.
        for (token, row) in tokens.clone().zip(values.chunks_mut(count)) {
            gradient(token as isize, row);
        }
        operands.write(simd, &at, tokens, values, line);
    }
}

impl<E: Element> Operands<'_, E> {
    /// Index of a token of a sequence and a channel, in x.
    fn at(&self, sequence: usize, token: usize, channel: usize) -> usize {
        let tokens = self.problem.sequences.range(sequence);
        match self.problem.layout {
            Layout::ChannelLast => (tokens.start + token) * self.problem.channels + channel,
            Layout::ChannelFirst => {
                (sequence * self.problem.channels + channel) * tokens.len() + token
            }
        }
    }

    /// Reads tokens of a sequence and some channels as rows of channels.
    #[inline(always)]
    fn read<S: Simd>(
        &self,
        simd: S,
        from: &[E],
        (sequence, channels): &(usize, Range<usize>),
        tokens: Range<usize>,
        rows: &mut [f32],
        line: &mut Vec<f32>,
    ) {
        let count = channels.len();
        if self.problem.layout == Layout::ChannelLast {
            for (token, row) in tokens.zip(rows.chunks_mut(count)) {
                let at = self.at(*sequence, token, channels.start);
                widen(simd, &from[at..at + count], row);
            }
            return;
        }
        line.resize(tokens.len(), 0.0);
        for (column, channel) in channels.clone().enumerate() {
            let at = self.at(*sequence, tokens.start, channel);
            widen(simd, &from[at..at + tokens.len()], line);
            for (value, row) in line.iter().zip(rows.chunks_mut(count)) {
                row[column] = *value;
            }
        }
    }

    /// Writes rows of channels to dx.
    #[inline(always)]
    #[allow(unsafe_code)] // Blocks write disjoint parts of the outputs.
    fn write<S: Simd>(
        &self,
        simd: S,
        (sequence, channels): &(usize, Range<usize>),
        tokens: Range<usize>,
        rows: &[f32],
        line: &mut Vec<f32>,
    ) {
        let count = channels.len();
        if self.problem.layout == Layout::ChannelLast {
            for (token, row) in tokens.zip(rows.chunks(count)) {
                let at = self.at(*sequence, token, channels.start);
                // SAFETY: this block alone has these tokens and channels.
                narrow(simd, row, unsafe { self.dx.slice(at..at + count) });
            }
            return;
        }
        for (column, channel) in channels.clone().enumerate() {
            line.clear();
            line.extend(rows.chunks(count).take(tokens.len()).map(|row| row[column]));
            let at = self.at(*sequence, tokens.start, channel);
            // SAFETY: this block alone has these tokens and channels.
            narrow(simd, line, unsafe { self.dx.slice(at..at + tokens.len()) });
        }
    }
}

/// `sum += a * b`, value by value.
#[inline(always)]
fn add_product(sum: &mut [f32], a: &[f32], b: &[f32]) {
    for ((sum, a), b) in sum.iter_mut().zip(a).zip(b) {
        *sum += a * b;
    }
}

/// `gradient *= silu'(u)`.
#[inline(always)]
#[allow(unsafe_code)] // Vectors loaded and stored through raw pointers.
fn through_silu<S: Simd>(simd: S, gradient: &mut [f32], u: &[f32]) {
    for (gradient, u) in gradient.chunks_mut(S::LANES).zip(u.chunks(S::LANES)) {
        let count = gradient.len();
        // SAFETY: both chunks have this many values.
        unsafe {
            let u = simd.load_first(u.as_ptr(), count);
            let sigmoid = math::sigmoid(simd, u);
            let complement = math::sigmoid(simd, simd.sub(simd.splat(0.0), u));
            let slope = simd.mul(sigmoid, simd.fma(u, complement, simd.splat(1.0)));
            let product = simd.mul(simd.load_first(gradient.as_ptr(), count), slope);
            simd.store_first(gradient.as_mut_ptr(), product, count);
        }
    }
}
