//! The gradient, token by token in float32. The README of the op has the formulas.
//!
//! A block has a query head of a sequence and its value heads, in order. For each it first runs through the tokens and keeps the state
//! before each chunk; then it takes the chunks from the last to the first, computes the decayed states of their tokens again, and runs
//! backwards through them. So results do not depend on the number of threads.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers; blocks write disjoint parts of the outputs.

mod buffers;
mod token;

use self::buffers::{Buffers, Chunk, Scratch};
use self::token::{Gradients, activate, advance, decay_factors, go_back, through_norm};
use crate::floats::store;
use crate::simd::{Simd, SimdKernel, dispatch};
use crate::stored::{Stored, StoredMut};
use crate::vectors::{dots_wide, pad, padded};
use device::{Device, Isa, SharedMut};
use ops::kda::{Beta, Gate, KdaProblem};
use ops::{GradientProblem, Inputs, Tensor, TensorMap, floats};
use std::borrow::Cow;
use std::ops::Range;

/// Tokens whose states are kept at once.
const CHUNK: usize = 32;

/// The outputs that blocks write; those of A_log and dt_bias are summed over sequences afterwards.
const OUTPUTS: [&str; 6] = ["dq", "dk", "dv", "dg", "dbeta", "dinitial_state"];

/// The tensors of one call.
struct Operands<'a> {
    problem: &'a KdaProblem,
    /// `[total, H, K]`
    q: Stored<'a>,
    k: Stored<'a>,
    /// `[total, HV, V]`
    v: Stored<'a>,
    d_o: Stored<'a>,
    /// `[total, HV, gates]`
    g: Stored<'a>,
    /// `[total, HV]`
    beta: Cow<'a, [f32]>,
    /// exp(A_log), `[HV]`; empty without it.
    rate: Vec<f32>,
    /// `[HV, padded gates]`
    bias: Vec<f32>,
    /// `[N, HV, K, V]`
    initial: Option<Stored<'a>>,
    dfinal: Option<Stored<'a>>,
    dq: StoredMut<'a>,
    dk: StoredMut<'a>,
    dv: StoredMut<'a>,
    dg: StoredMut<'a>,
    dbeta: StoredMut<'a>,
    dinitial: Option<StoredMut<'a>>,
    /// `[N, HV]`
    drate: SharedMut<'a, f64>,
    /// `[N, HV, gates]`
    dbias: SharedMut<'a, f64>,
}

/// Runs the variant whose kernel name is `kernel`.
pub(crate) fn run(
    isa: Isa,
    kernel: &str,
    problem: &GradientProblem<KdaProblem>,
    inputs: Inputs<'_>,
    device: &Device,
    outputs: &mut TensorMap,
) {
    let problem = &problem.forward;
    let (count, hv, gates) = (problem.sequences.count(), problem.value_heads, problem.gate_dim());
    let rate = inputs.get("A_log").map(Tensor::to_f64).unwrap_or_default();
    let bias = match inputs.get("dt_bias") {
        Some(bias) => pad(&floats(bias), gates),
        None => vec![0.0; hv * padded(gates)],
    };
    let (mut drate, mut dbias) = (vec![0f64; count * hv], vec![0f64; count * hv * gates]);
    let mut tensors = OUTPUTS.map(|name| outputs.remove(name));
    if let [Some(dq), Some(dk), Some(dv), Some(dg), Some(dbeta), dinitial] = &mut tensors {
        let operands = Operands {
            problem,
            q: Stored::new(inputs.tensor("q")),
            k: Stored::new(inputs.tensor("k")),
            v: Stored::new(inputs.tensor("v")),
            d_o: Stored::new(inputs.tensor("do")),
            g: Stored::new(inputs.tensor("g")),
            beta: floats(inputs.tensor("beta")),
            rate: rate.iter().map(|a_log| a_log.exp() as f32).collect(),
            bias,
            initial: inputs.get("initial_state").map(Stored::new),
            dfinal: inputs.get("dfinal_state").map(Stored::new),
            dq: StoredMut::new(dq),
            dk: StoredMut::new(dk),
            dv: StoredMut::new(dv),
            dg: StoredMut::new(dg),
            dbeta: StoredMut::new(dbeta),
            dinitial: dinitial.as_mut().map(StoredMut::new),
            drate: SharedMut::new(&mut drate),
            dbias: SharedMut::new(&mut dbias),
        };
        device.launch(kernel, count * problem.heads, Scratch::default, |scratch, block| {
            let (sequence, head) = (block / problem.heads, block % problem.heads);
            dispatch(isa, Block { operands: &operands, sequence, head, scratch });
        });
    }
    let written = OUTPUTS.iter().zip(tensors);
    outputs.extend(written.filter_map(|(name, tensor)| Some(((*name).to_owned(), tensor?))));
    for (name, sums, len) in [("dA_log", drate, hv), ("ddt_bias", dbias, hv * gates)] {
        if let Some(output) = outputs.get_mut(name) {
            let over_sequences = |at: usize| sums.iter().skip(at).step_by(len).sum();
            store(&(0..len).map(over_sequences).collect::<Vec<f64>>(), output);
        }
    }
}

struct Block<'a> {
    operands: &'a Operands<'a>,
    sequence: usize,
    head: usize,
    scratch: &'a mut Scratch,
}

impl SimdKernel for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { operands, sequence, head, scratch } = self;
        let problem = operands.problem;
        let tokens = problem.sequences.range(sequence);
        let group = problem.value_heads / problem.heads;
        let mut buffers = scratch.buffers(problem, tokens.len());
        buffers.dq.fill(0.0);
        buffers.dk.fill(0.0);
        for value_head in head * group..(head + 1) * group {
            operands.of_value_head(simd, sequence, value_head, &mut buffers);
        }
        operands.write_keys(S::ISA, sequence, head, buffers);
    }
}

impl Operands<'_> {
    /// The gradients of a value head of a sequence; those of queries and keys are added to the sums of the block.
    #[inline(always)]
    fn of_value_head<S: Simd>(
        &self,
        simd: S,
        sequence: usize,
        head: usize,
        buffers: &mut Buffers<'_>,
    ) {
        let problem = self.problem;
        let (tokens, key_dim, gates) =
            (problem.sequences.range(sequence), problem.key_dim, problem.gate_dim());
        let (width, columns) = (padded(key_dim), padded(problem.value_dim));
        let size = key_dim * columns;
        let chunks = tokens.len().div_ceil(CHUNK);
        let Buffers { chunk: own, starts, state, decayed, dstate, dq, dk, dg, dv, .. } = buffers;
        let at_head = sequence * problem.value_heads + head;
        // SAFETY: this block alone has this head of this sequence.
        let (drate, dbias) = unsafe {
            let of_head = at_head * gates..(at_head + 1) * gates;
            (self.drate.slice(at_head..at_head + 1), self.dbias.slice(of_head))
        };

        self.load_state(S::ISA, self.initial, at_head, state);
        self.load_state(S::ISA, self.dfinal, at_head, dstate);
        // First all chunks in order, to keep the states before them; then in reverse.
        for visit in 0..2 * chunks {
            let is_back = visit >= chunks;
            let chunk = if is_back { 2 * chunks - 1 - visit } else { visit };
            let start = &mut starts[chunk * size..][..size];
            if is_back {
                state.copy_from_slice(start);
            } else {
                start.copy_from_slice(state);
                if chunk + 1 == chunks {
                    continue; // Its states are computed in the next visit.
                }
            }
            let first = tokens.start + chunk * CHUNK;
            let of_chunk = first..(first + CHUNK).min(tokens.end);
            self.load(simd, of_chunk.clone(), head, own);
            for index in 0..of_chunk.len() {
                let at = if is_back { index * size } else { 0 };
                let mut token = own.token(index, width, columns);
                advance(simd, &mut token, state, &mut decayed[at..][..size]);
            }
            if !is_back {
                continue;
            }
            for (index, token) in of_chunk.enumerate().rev() {
                let row = (token - tokens.start) * width;
                let gradients =
                    Gradients { dq: &mut dq[row..][..width], dk: &mut dk[row..][..width], dg, dv };
                let decayed = &decayed[index * size..][..size];
                let of_token = own.token(index, width, columns);
                let dbeta =
                    go_back(simd, &of_token, decayed, dstate, gradients, problem.scale as f32);
                self.through_gate(own, index, dg, &mut drate[0], dbias);
                let at = token * problem.value_heads + head;
                let value_dim = problem.value_dim;
                // SAFETY: this block alone has this token of this head.
                unsafe {
                    self.dv.write(S::ISA, at * value_dim, &dv[..value_dim]);
                    self.dg.write(S::ISA, at * gates, &dg[..gates]);
                    self.dbeta.narrow(at..at + 1, &[dbeta * own.beta[index][1]]);
                }
            }
        }
        if let Some(to) = &self.dinitial {
            for channel in 0..key_dim {
                let row = &dstate[channel * columns..][..problem.value_dim];
                // SAFETY: this block alone has this head of this sequence.
                unsafe {
                    to.write(S::ISA, (at_head * key_dim + channel) * problem.value_dim, row);
                }
            }
        }
    }

    /// Replaces the gradient of a token's log decays by that of its logits, and adds to the sums for A_log and dt_bias.
    #[inline(never)]
    fn through_gate(
        &self,
        chunk: &Chunk<'_>,
        index: usize,
        dg: &mut [f32],
        drate: &mut f64,
        dbias: &mut [f64],
    ) {
        let gates = self.problem.gate_dim();
        if gates == 1 {
            let over_channels = dg[..self.problem.key_dim].iter().map(|dg| f64::from(*dg));
            dg[0] = over_channels.sum::<f64>() as f32;
        }
        if self.problem.gate == Gate::LogDecay {
            return;
        }
        let row = index * padded(gates)..index * padded(gates) + gates;
        let factors = chunk.slope[row.clone()].iter().zip(&chunk.of_rate[row]);
        for ((dg, dbias), (slope, of_rate)) in dg.iter_mut().zip(dbias).zip(factors) {
            *drate += f64::from(*dg) * f64::from(*of_rate);
            *dg *= slope;
            *dbias += f64::from(*dg);
        }
    }

    /// Writes the gradients of the queries and keys of a head of a sequence.
    #[inline(never)]
    fn write_keys(&self, isa: Isa, sequence: usize, head: usize, buffers: Buffers<'_>) {
        let KdaProblem { heads, key_dim, l2norm, .. } = *self.problem;
        let Buffers { x, dq, dk, .. } = buffers;
        x.fill(0.0);
        for (from, gradient, to) in [(self.q, dq, &self.dq), (self.k, dk, &self.dk)] {
            let rows = gradient.chunks_exact_mut(x.len());
            for (token, row) in self.problem.sequences.range(sequence).zip(rows) {
                let start = (token * heads + head) * key_dim;
                if l2norm {
                    from.read(isa, start, &mut x[..key_dim]);
                    through_norm(x, row);
                }
                // SAFETY: this block alone has this head of this sequence.
                unsafe { to.write(isa, start, &row[..key_dim]) };
            }
        }
    }

    /// A head's state as `[K, padded V]`; zeros without one.
    #[inline(never)]
    fn load_state(&self, isa: Isa, from: Option<Stored<'_>>, at_head: usize, to: &mut [f32]) {
        to.fill(0.0);
        let Some(from) = from else { return };
        let KdaProblem { key_dim, value_dim, .. } = *self.problem;
        let columns = padded(value_dim);
        for channel in 0..key_dim {
            let row = &mut to[channel * columns..][..value_dim];
            from.read(isa, (at_head * key_dim + channel) * value_dim, row);
        }
    }

    /// Loads the queries, keys, values and gradients of o of a token of a chunk, and its gates as they are given.
    #[inline(never)]
    fn load_rows(&self, isa: Isa, token: usize, head: usize, index: usize, chunk: &mut Chunk<'_>) {
        let KdaProblem { heads, value_heads, key_dim, value_dim, l2norm, .. } = *self.problem;
        let (width, columns, gates) = (padded(key_dim), padded(value_dim), self.problem.gate_dim());
        let own = token * value_heads + head;
        for (from, to) in [(self.q, &mut *chunk.q), (self.k, &mut *chunk.k)] {
            let row = &mut to[index * width..][..width];
            let start = (token * heads + self.problem.head_of(head)) * key_dim;
            from.read(isa, start, &mut row[..key_dim]);
            if l2norm {
                let factor = 1.0 / (dots_wide(row, row)[0] + 1e-6).sqrt();
                row.iter_mut().for_each(|x| *x = (f64::from(*x) * factor) as f32);
            }
        }
        for (from, to) in [(self.v, &mut *chunk.error), (self.d_o, &mut *chunk.d_o)] {
            from.read(isa, own * value_dim, &mut to[index * columns..][..value_dim]);
        }
        self.g.read(isa, own * gates, &mut chunk.part[index * width..][..gates]);
        let x = self.beta[own];
        chunk.beta[index] = match self.problem.beta {
            Beta::AsGiven => [x, 1.0],
            Beta::Sigmoid { factor } => {
                let [sigmoid, complement] = [-x, x].map(|x| 1.0 / (1.0 + x.exp()));
                let factor = factor as f32;
                [factor * sigmoid, factor * sigmoid * complement]
            }
        };
    }

    /// Loads tokens, with their decays and write strengths.
    #[inline(always)]
    fn load<S: Simd>(&self, simd: S, tokens: Range<usize>, head: usize, chunk: &mut Chunk<'_>) {
        let (key_dim, gates) = (self.problem.key_dim, self.problem.gate_dim());
        let (width, gate_width) = (padded(key_dim), padded(gates));
        for (index, token) in tokens.enumerate() {
            self.load_rows(S::ISA, token, head, index, chunk);
            let part = &mut chunk.part[index * width..][..width];
            if self.problem.gate != Gate::LogDecay {
                let bias = &self.bias[head * gate_width..][..gate_width];
                let slope = &mut chunk.slope[index * gate_width..][..gate_width];
                let of_rate = &mut chunk.of_rate[index * gate_width..][..gate_width];
                let rows = [&mut part[..gate_width], slope, of_rate];
                activate(simd, self.problem.gate, self.rate[head], bias, rows);
            }
            if gates == 1 {
                let log_decay = part[0];
                part[..key_dim].fill(log_decay);
            }
            decay_factors(simd, part, &mut chunk.whole[index * width..][..width]);
        }
    }
}
