//! The gradient: a block is a segment of a sequence's tokens and a tile of channels, as float32 rows of channels.
//!
//! A block computes the activation's gradient of the W - 1 tokens after its own too, which also read its tokens. Gradients of weights are
//! summed over a block's tokens, then over segments in order. Blocks depend only on the problem, and so do the results.

use super::{Segment, TAPS, by_tap};
use crate::floats::store;
use crate::simd::{Simd, SimdKernel, dispatch, math};
use crate::stored::{Stored, StoredMut};
use device::{Device, Isa, SharedMut};
use ops::conv1d::{Activation, Conv1dProblem, Layout};
use ops::{GradientProblem, Inputs, Tensor, TensorMap, floats};
use std::borrow::Cow;
use std::ops::Range;

/// Tokens of a segment.
const TOKENS: usize = 256;
/// Channels of a tile, which are whole vectors of any instruction set.
const CHANNELS: usize = 64;
/// Rows before those of a segment's tokens in a block's buffers.
const HISTORY: usize = TAPS - 1;

/// The tensors of one call.
struct Operands<'a> {
    problem: &'a Conv1dProblem,
    segments: Vec<Segment>,
    /// `[total, C]` or `[B, C, T]`, as are `d_o` and `dx`.
    x: Stored<'a>,
    d_o: Stored<'a>,
    dx: StoredMut<'a>,
    /// `[W, C]`.
    weight: Vec<f32>,
    /// `[C]`.
    bias: Option<Cow<'a, [f32]>>,
    /// `[Nseq, C, S]`, as are `dfinal` and `dinitial`, which is empty without an initial state.
    initial: Option<Cow<'a, [f32]>>,
    dfinal: Option<Cow<'a, [f32]>>,
    dinitial: SharedMut<'a, f32>,
    /// Sums over each segment's tokens: gradients of the taps, then of the bias, `[segments, W + 1, C]`.
    sums: SharedMut<'a, f32>,
}

/// Runs the variant whose kernel name is `kernel`.
pub(in crate::conv1d) fn run(
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
    let Some(dx) = outputs.get_mut("dx") else { return };
    let operands = Operands {
        problem,
        x: Stored::new(inputs.tensor("x")),
        d_o: Stored::new(inputs.tensor("do")),
        dx: StoredMut::new(dx),
        weight,
        bias: inputs.get("bias").map(floats),
        initial: inputs.get("initial_state").map(floats),
        dfinal: inputs.get("dfinal_state").map(floats),
        dinitial: SharedMut::new(&mut dinitial),
        sums: SharedMut::new(&mut sums),
        segments,
    };
    let tiles = channels.div_ceil(CHANNELS);
    device.launch(kernel, operands.segments.len() * tiles, Scratch::default, |scratch, block| {
        let start = block % tiles * CHANNELS;
        operands.block(isa, block / tiles, start..(start + CHANNELS).min(channels), scratch);
    });
    let mut total = vec![0f64; rows * channels];
    for sum in sums.chunks(total.len().max(1)) {
        total.iter_mut().zip(sum).for_each(|(total, sum)| *total += f64::from(*sum));
    }
    for (name, tensor) in outputs {
        match name.as_str() {
            "dweight" => {
                let of_tap = |at: usize| total[at % width * channels + at / width];
                store(&(0..width * channels).map(of_tap).collect::<Vec<_>>(), tensor);
            }
            "dbias" => store(&total[width * channels..], tensor),
            "dinitial_state" => {
                store(&dinitial.iter().map(|value| f64::from(*value)).collect::<Vec<_>>(), tensor);
            }
            _ => {}
        }
    }
}

/// A row of a tile's channels.
type Row = [f32; CHANNELS];

/// Buffers of one thread. Row [`HISTORY`] is that of a segment's first token.
#[derive(Default)]
struct Scratch {
    /// x, and then its gradient.
    values: Vec<Row>,
    /// The gradient of o, and then that of the sum before the activation.
    du: Vec<Row>,
    line: Vec<f32>,
}

impl Operands<'_> {
    #[allow(unsafe_code)] // Blocks write disjoint parts of the outputs.
    fn block(&self, isa: Isa, number: usize, channels: Range<usize>, scratch: &mut Scratch) {
        let problem = self.problem;
        let Segment { sequence, tokens } = self.segments[number].clone();
        let (width, state_len, count) = (problem.width, problem.state_len, channels.len());
        let len = problem.sequences.range(sequence).len();
        // The tokens that read this segment's.
        let end = (tokens.end + width - 1).min(len);
        let Scratch { values, du, line } = scratch;
        for (rows, after) in [(&mut *values, 0), (&mut *du, HISTORY)] {
            rows.clear();
            rows.resize(HISTORY + end - tokens.start + after, [0.0; CHANNELS]);
        }
        let state = |channel: usize| (sequence * problem.channels + channel) * state_len;
        let before = HISTORY.min(tokens.start);
        if let (Some(initial), 0) = (&self.initial, tokens.start) {
            // The row of token -1 is the last before the first token's.
            for (age, row) in (1..=HISTORY.min(state_len)).zip(values[..HISTORY].iter_mut().rev()) {
                for (value, channel) in row.iter_mut().zip(channels.clone()) {
                    *value = initial[state(channel) + state_len - age];
                }
            }
        }
        let at = (sequence, channels.clone());
        let read = tokens.start - before..end;
        self.read(isa, self.x, &at, read, &mut values[HISTORY - before..], line);
        self.read(isa, self.d_o, &at, tokens.start..end, &mut du[HISTORY..], line);

        let absent = TAPS - width;
        let mut taps = [[0.0; CHANNELS]; TAPS];
        for (row, taps) in taps[absent..].iter_mut().zip(self.weight.chunks(problem.channels)) {
            row[..count].copy_from_slice(&taps[channels.clone()]);
        }
        let mut bias = [0.0; CHANNELS];
        if let Some(given) = &self.bias {
            bias[..count].copy_from_slice(&given[channels.clone()]);
        }
        let mut sums = [[0.0; CHANNELS]; TAPS + 1];
        let passes = Passes {
            values,
            du,
            taps: &taps,
            absent,
            bias: &bias,
            sums: &mut sums,
            silu: problem.activation == Activation::Silu,
            channels: count,
            tokens: tokens.len(),
        };
        dispatch(isa, passes);
        for (tap, sum) in sums[absent..].iter().enumerate() {
            let start = (number * (width + 1) + tap) * problem.channels + channels.start;
            // SAFETY: this block alone has its segment and channels.
            let to = unsafe { self.sums.slice(start..start + count) };
            to.copy_from_slice(&sum[..count]);
        }

        // The final state holds the last S tokens; those before the sequence have t < 0.
        let oldest = len as isize - state_len as isize;
        if let (Some(_), 0) = (&self.initial, tokens.start) {
            for column in 0..state_len {
                let token = column as isize - state_len as isize;
                let row = usize::try_from(token + HISTORY as isize).ok().map(|row| &values[row]);
                let kept = usize::try_from(token - oldest).ok();
                for (tile, channel) in channels.clone().enumerate() {
                    let through = row.map_or(0.0, |row| row[tile]);
                    let kept = match (&self.dfinal, kept) {
                        (Some(dfinal), Some(kept)) => dfinal[state(channel) + kept],
                        _ => 0.0,
                    };
                    let at = state(channel) + column;
                    // SAFETY: the first segment of a sequence alone has its state.
                    unsafe { self.dinitial.slice(at..at + 1) }.fill(kept + through);
                }
            }
        }
        if let Some(dfinal) = &self.dfinal {
            for (token, row) in tokens.clone().zip(&mut values[HISTORY..]) {
                let Ok(column) = usize::try_from(token as isize - oldest) else { continue };
                for (value, channel) in row.iter_mut().zip(channels.clone()) {
                    *value += dfinal[state(channel) + column];
                }
            }
        }
        self.write(isa, &at, tokens, &values[HISTORY..], line);
    }

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
    fn read(
        &self,
        isa: Isa,
        from: Stored<'_>,
        (sequence, channels): &(usize, Range<usize>),
        tokens: Range<usize>,
        rows: &mut [Row],
        line: &mut Vec<f32>,
    ) {
        if self.problem.layout == Layout::ChannelLast {
            for (token, row) in tokens.zip(rows) {
                let at = self.at(*sequence, token, channels.start);
                from.read(isa, at, &mut row[..channels.len()]);
            }
            return;
        }
        line.resize(tokens.len(), 0.0);
        for (column, channel) in channels.clone().enumerate() {
            from.read(isa, self.at(*sequence, tokens.start, channel), line);
            for (value, row) in line.iter().zip(&mut *rows) {
                row[column] = *value;
            }
        }
    }

    /// Writes rows of channels to dx.
    #[allow(unsafe_code)] // Blocks write disjoint parts of the outputs.
    fn write(
        &self,
        isa: Isa,
        (sequence, channels): &(usize, Range<usize>),
        tokens: Range<usize>,
        rows: &[Row],
        line: &mut Vec<f32>,
    ) {
        if self.problem.layout == Layout::ChannelLast {
            for (token, row) in tokens.zip(rows) {
                let at = self.at(*sequence, token, channels.start);
                // SAFETY: this block alone has these tokens and channels.
                unsafe { self.dx.write(isa, at, &row[..channels.len()]) };
            }
            return;
        }
        for (column, channel) in channels.clone().enumerate() {
            line.clear();
            line.extend(rows[..tokens.len()].iter().map(|row| row[column]));
            let at = self.at(*sequence, tokens.start, channel);
            // SAFETY: this block alone has these tokens and channels.
            unsafe { self.dx.write(isa, at, line) };
        }
    }
}

/// The two passes over a block's tokens: the gradient of the sum before the activation, from the past on; that of x, from the tokens
/// that read it.
struct Passes<'a> {
    values: &'a mut [Row],
    du: &'a mut [Row],
    /// Taps, the newest token's last; the first `absent` ones have no weight and are not read.
    taps: &'a [Row; TAPS],
    absent: usize,
    bias: &'a Row,
    /// Gradients of the taps, then of the bias.
    sums: &'a mut [Row; TAPS + 1],
    silu: bool,
    /// Channels that the rows have.
    channels: usize,
    /// Tokens of the segment, whose sums these are.
    tokens: usize,
}

/// The row that an absent tap multiplies: 0 times a token could be NaN.
static ZEROS: Row = [0.0; CHANNELS];

impl SimdKernel for Passes<'_> {
    type Output = ();

    #[inline(always)]
    #[allow(unsafe_code)] // Vectors loaded and stored through raw pointers.
    fn run<S: Simd>(self, simd: S) {
        let Self { values, du, taps, absent, bias, sums, silu, channels, tokens } = self;
        let (zero, one) = (simd.splat(0.0), simd.splat(1.0));
        for first in (0..channels).step_by(S::LANES) {
            let (mut weights, mut inputs) = ([zero; TAPS], [zero; TAPS]);
            for tap in 0..TAPS {
                weights[tap] = vector(simd, &taps[tap], first);
            }
            let offset = vector(simd, bias, first);
            let mut partial = [zero; TAPS + 1];
            for token in 0..values.len() - HISTORY {
                for tap in 0..TAPS {
                    let row = if tap < absent { &ZEROS } else { &values[token + tap] };
                    inputs[tap] = vector(simd, row, first);
                }
                let row = &mut du[HISTORY + token];
                let mut gradient = vector(simd, row, first);
                if silu {
                    let mut u = offset;
                    for tap in 0..TAPS {
                        u = simd.fma(weights[tap], inputs[tap], u);
                    }
                    let [sigmoid, complement] = math::sigmoids(simd, u);
                    let slope = simd.mul(sigmoid, simd.fma(u, complement, one));
                    gradient = simd.mul(gradient, slope);
                    // SAFETY: `first` starts a vector of every row.
                    unsafe { simd.store(row.as_mut_ptr().add(first), gradient) };
                }
                if token < tokens {
                    for tap in 0..TAPS {
                        partial[tap] = simd.fma(gradient, inputs[tap], partial[tap]);
                    }
                    partial[TAPS] = simd.add(partial[TAPS], gradient);
                }
            }
            for (sum, partial) in sums.iter_mut().zip(partial) {
                // SAFETY: as above.
                unsafe { simd.store(sum.as_mut_ptr().add(first), partial) };
            }
            for (token, row) in values[..HISTORY + tokens].iter_mut().enumerate() {
                let mut gradient = zero;
                for tap in absent..TAPS {
                    let du = vector(simd, &du[token + HISTORY - tap], first);
                    gradient = simd.fma(weights[tap], du, gradient);
                }
                // SAFETY: as above.
                unsafe { simd.store(row.as_mut_ptr().add(first), gradient) };
            }
        }
    }
}

/// The vector of a row's channels from `first` on, which is a multiple of the vector's length.
#[inline(always)]
#[allow(unsafe_code)] // A vector loaded through a raw pointer.
fn vector<S: Simd>(simd: S, row: &Row, first: usize) -> S::V {
    let row = &row[first..first + S::LANES];
    // SAFETY: the slice is a vector.
    unsafe { simd.load(row.as_ptr()) }
}
