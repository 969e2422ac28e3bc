//! The gradient, token by token. `crates/ops/src/ssd/gradient.rs` has the formulas.
//!
//! A block has some heads of a group of a sequence. For each head it first runs through the tokens and keeps the state before each chunk; then
//! it takes the chunks from the last to the first, computes the states of their tokens again, and runs backwards through them. Sums over the
//! heads of a block are added in their order, those of blocks at the end, so results do not depend on the number of threads.
#![allow(unsafe_code)] // Vectors through raw pointers; blocks write disjoint parts of the outputs.

use super::operands::Operands;
use crate::floats::store;
use crate::simd::{Simd, SimdKernel, dispatch};
use crate::vectors::padded;
use device::{Device, Isa, SharedMut};
use ops::ssd::SsdProblem;
use ops::{Element, GradientProblem, Inputs, TensorMap, elements, elements_mut, floats};
use std::borrow::Cow;
use std::ops::Range;

/// Tokens whose states are kept at once.
const CHUNK: usize = 32;
/// Blocks of the heads of a group at most: each has its own sums of dB and dC.
const PARTS: usize = 8;

/// It runs every problem.
pub(super) fn why_not(_: &GradientProblem<SsdProblem>) -> Option<String> {
    None
}

/// Runs the variant whose kernel name is `kernel`.
pub(super) fn run<E: Element>(
    isa: Isa,
    kernel: &str,
    problem: &GradientProblem<SsdProblem>,
    inputs: Inputs<'_>,
    device: &Device,
    outputs: &mut TensorMap,
) {
    let problem = &problem.forward;
    let (heads, groups, count) = (problem.heads, problem.groups, problem.sequences.count());
    let (total, columns) = (problem.sequences.total(), padded(problem.state_dim));
    let parts = problem.heads_per_group().clamp(1, PARTS);
    let (states, rows) = (count * heads * problem.state_len(), count * heads * problem.head_dim);
    let [mut dx, mut dz] = ["dx", "dz"].map(|name| outputs.remove(name));
    let [mut db, mut dc] = [0, 1].map(|_| vec![0f32; parts * total * groups * columns]);
    let [mut drate, mut dbias] = [0, 1].map(|_| vec![0f64; count * heads]);
    let (mut ddt, mut dd) = (vec![0f64; total * heads], vec![0f64; rows]);
    let mut dinitial = vec![0f32; if problem.has_initial_state { states } else { 0 }];
    let gradients = Gradients::<E> {
        isa,
        forward: Operands::read(problem, inputs),
        d_o: elements(inputs.tensor("do")),
        dfinal: inputs.get("dfinal_state").map(floats),
        dt: floats(inputs.tensor("dt")),
        dt_bias: inputs.get("dt_bias").map(floats),
        columns,
        dx: SharedMut::new(elements_mut(dx.as_mut())),
        dz: dz.as_mut().map(|dz| SharedMut::new(elements_mut(Some(dz)))),
        ddt: SharedMut::new(&mut ddt),
        drate: SharedMut::new(&mut drate),
        dbias: SharedMut::new(&mut dbias),
        dd: SharedMut::new(&mut dd),
        db: SharedMut::new(&mut db),
        dc: SharedMut::new(&mut dc),
        dinitial: SharedMut::new(&mut dinitial),
    };
    device.launch(kernel, count * groups * parts, Scratch::default, |scratch, block| {
        let (sequence, group, part) =
            (block / (groups * parts), block / parts % groups, block % parts);
        let size = problem.heads_per_group();
        for head in size * part / parts..size * (part + 1) / parts {
            gradients.of_head(sequence, (group * size + head, part), scratch);
        }
    });

    // Sums over the sequences, and over the parts of a group.
    let over_sequences = |values: &[f64], len: usize| -> Vec<f64> {
        (0..len).map(|at| values.iter().skip(at).step_by(len.max(1)).sum()).collect()
    };
    let over_parts = |values: &[f32]| -> Vec<f64> {
        let size = total * groups * columns;
        let sum = |at: usize| (0..parts).map(|part| f64::from(values[part * size + at])).sum();
        let row = |row: usize| (0..problem.state_dim).map(move |n| row * columns + n);
        (0..total * groups).flat_map(row).map(sum).collect()
    };
    let mut dd = over_sequences(&dd, heads * problem.head_dim);
    if inputs.get("D").is_some_and(|d| d.shape().len() == 1) {
        dd = dd.chunks(problem.head_dim.max(1)).map(|head| head.iter().sum()).collect();
        dd.resize(heads, 0.0);
    }
    let all = [
        ("ddt", ddt),
        ("dA", over_sequences(&drate, heads)),
        ("dB", over_parts(&db)),
        ("dC", over_parts(&dc)),
        ("dD", dd),
        ("ddt_bias", over_sequences(&dbias, heads)),
        ("dinitial_state", dinitial.iter().map(|value| f64::from(*value)).collect()),
    ];
    for (name, values) in all {
        if let Some(output) = outputs.get_mut(name) {
            store(&values, output);
        }
    }
    let both = [("dx", dx), ("dz", dz)];
    outputs.extend(both.into_iter().filter_map(|(name, tensor)| Some((name.to_owned(), tensor?))));
}

/// The tensors of one call.
struct Gradients<'a, E> {
    isa: Isa,
    forward: Operands<'a, E>,
    /// `[total, H, P]`
    d_o: &'a [E],
    /// `[Nseq, H, P, N]`
    dfinal: Option<Cow<'a, [f32]>>,
    /// `[total, H]`
    dt: Cow<'a, [f32]>,
    /// `[H]`
    dt_bias: Option<Cow<'a, [f32]>>,
    /// N, padded to whole vectors.
    columns: usize,
    dx: SharedMut<'a, E>,
    dz: Option<SharedMut<'a, E>>,
    /// `[total, H]`
    ddt: SharedMut<'a, f64>,
    /// `[Nseq, H]`
    drate: SharedMut<'a, f64>,
    dbias: SharedMut<'a, f64>,
    /// `[Nseq, H, P]`
    dd: SharedMut<'a, f64>,
    /// `[parts, total, G, padded N]`
    db: SharedMut<'a, f32>,
    dc: SharedMut<'a, f32>,
    /// `[Nseq, H, P, N]`
    dinitial: SharedMut<'a, f32>,
}

/// Buffers of one thread.
#[derive(Default)]
struct Scratch {
    chunk: Chunk,
    /// The state before each chunk, `[chunks, P, padded N]`.
    starts: Vec<f32>,
    /// The state before each token of a chunk and after the last one, `[CHUNK + 1, P, padded N]`.
    states: Vec<f32>,
    /// The gradient of the state, `[P, padded N]`.
    g: Vec<f32>,
    row: Vec<f32>,
}

/// The tokens of one head of a chunk, in float32.
#[derive(Default)]
struct Chunk {
    /// `[tokens, P]`
    x: Vec<f32>,
    d_o: Vec<f32>,
    z: Vec<f32>,
    /// `[tokens, padded N]`
    b: Vec<f32>,
    c: Vec<f32>,
    /// Step sizes, and exp(step A): `[tokens]`.
    steps: Vec<f32>,
    decay: Vec<f32>,
}

impl<E: Element> Gradients<'_, E> {
    /// The gradients of a head of a sequence; its sums of dB and dC are added to those of the part.
    fn of_head(&self, sequence: usize, (head, part): (usize, usize), scratch: &mut Scratch) {
        let problem = self.forward.problem;
        let (tokens, dim, n) =
            (problem.sequences.range(sequence), problem.head_dim, problem.state_dim);
        let size = dim * self.columns;
        let Scratch { chunk, starts, states, g, row } = scratch;
        let chunks: Vec<Range<usize>> = tokens
            .clone()
            .step_by(CHUNK)
            .map(|start| start..(start + CHUNK).min(tokens.end))
            .collect();

        states.resize((CHUNK + 1) * size, 0.0);
        let at_state = self.forward.state(sequence, head);
        self.load_state(self.forward.initial_state.as_deref(), at_state, &mut states[..size]);
        starts.clear();
        for tokens in &chunks {
            starts.extend_from_slice(&states[..size]);
            self.load(tokens.clone(), head, chunk);
            for index in 0..tokens.len() {
                self.advance(chunk, index, &mut states[..size]);
            }
        }

        g.resize(size, 0.0);
        self.load_state(self.dfinal.as_deref(), at_state, g);
        let rate = f64::from(self.forward.rate[head]);
        let (mut drate, mut dbias) = (0f64, 0f64);
        let at_head = sequence * problem.heads + head;
        // SAFETY: this block alone has this head of this sequence.
        let dd = unsafe { self.dd.slice(at_head * dim..(at_head + 1) * dim) };
        for (number, tokens) in chunks.iter().enumerate().rev() {
            self.load(tokens.clone(), head, chunk);
            states[..size].copy_from_slice(&starts[number * size..][..size]);
            for index in 0..tokens.len() {
                let (before, after) = states.split_at_mut((index + 1) * size);
                after[..size].copy_from_slice(&before[index * size..]);
                self.advance(chunk, index, &mut after[..size]);
            }
            for (index, token) in tokens.clone().enumerate().rev() {
                let (before, after) = states[index * size..].split_at(size);
                let group = head / problem.heads_per_group();
                let at = ((part * problem.sequences.total() + token) * problem.groups + group)
                    * self.columns;
                row.clear();
                row.extend(self.gated(chunk, index));
                // SAFETY: this block alone adds to this part's sums of this group of this sequence.
                let (db, dc) = unsafe {
                    let row = at..at + self.columns;
                    (self.db.slice(row.clone()), self.dc.slice(row))
                };
                let kernel = Token {
                    x: &chunk.x[index * dim..][..dim],
                    dy: row,
                    b: &chunk.b[index * self.columns..][..self.columns],
                    c: &chunk.c[index * self.columns..][..self.columns],
                    step: chunk.steps[index],
                    decay: chunk.decay[index],
                    before,
                    after: &after[..size],
                    g,
                    db,
                    dc,
                };
                let sums = dispatch(self.isa, kernel);
                self.write(chunk, (index, token, head), row, &sums, dd);
                let dexponent = f64::from(chunk.decay[index]) * sums.before;
                drate += f64::from(chunk.steps[index]) * dexponent;
                let ddt = (sums.step + rate * dexponent) * self.slope(token, head);
                dbias += ddt;
                let at = token * problem.heads + head;
                // SAFETY: this block alone has this token of this head.
                unsafe { self.ddt.slice(at..at + 1)[0] = ddt };
            }
        }
        // SAFETY: this block alone has this head of this sequence.
        unsafe {
            self.drate.slice(at_head..at_head + 1)[0] = drate;
            self.dbias.slice(at_head..at_head + 1)[0] = dbias;
            if problem.has_initial_state {
                let to = self.dinitial.slice(at_state..at_state + problem.state_len());
                for (to, g) in to.chunks_mut(n.max(1)).zip(g.chunks(self.columns.max(1))) {
                    to.copy_from_slice(&g[..n]);
                }
            }
        }
    }

    /// A state `[P, N]`, or 0, with padded rows.
    fn load_state(&self, states: Option<&[f32]>, at: usize, to: &mut [f32]) {
        let n = self.forward.problem.state_dim;
        to.fill(0.0);
        let Some(states) = states else { return };
        let rows = states[at..][..self.forward.problem.state_len()].chunks(n.max(1));
        to.chunks_mut(self.columns.max(1))
            .zip(rows)
            .for_each(|(to, row)| to[..n].copy_from_slice(row));
    }

    fn load(&self, tokens: Range<usize>, head: usize, chunk: &mut Chunk) {
        let problem = self.forward.problem;
        let (dim, n, count) = (problem.head_dim, problem.state_dim, tokens.len());
        for rows in [&mut chunk.x, &mut chunk.d_o, &mut chunk.z] {
            rows.resize(count * dim, 0.0);
        }
        for rows in [&mut chunk.b, &mut chunk.c] {
            rows.clear();
            rows.resize(count * self.columns, 0.0);
        }
        for (index, token) in tokens.clone().enumerate() {
            let (row, own) = (self.forward.row(token, head, 0), index * dim..(index + 1) * dim);
            E::widen(&self.forward.x[row..row + dim], &mut chunk.x[own.clone()]);
            E::widen(&self.d_o[row..row + dim], &mut chunk.d_o[own.clone()]);
            if let Some(z) = self.forward.z {
                E::widen(&z[row..row + dim], &mut chunk.z[own]);
            }
            let (from, own) = (self.forward.projection(token, head), index * self.columns);
            E::widen(&self.forward.b[from.clone()], &mut chunk.b[own..own + n]);
            E::widen(&self.forward.c[from], &mut chunk.c[own..own + n]);
        }
        chunk.steps.resize(count, 0.0);
        dispatch(self.isa, Steps { forward: &self.forward, head, tokens, to: &mut chunk.steps });
        let rate = self.forward.rate[head];
        chunk.decay.clear();
        chunk.decay.extend(chunk.steps.iter().map(|step| (step * rate).exp()));
    }

    /// Advances a state by a token of a chunk.
    fn advance(&self, chunk: &Chunk, index: usize, state: &mut [f32]) {
        let dim = self.forward.problem.head_dim;
        let kernel = Advance {
            x: &chunk.x[index * dim..][..dim],
            b: &chunk.b[index * self.columns..][..self.columns],
            step: chunk.steps[index],
            decay: chunk.decay[index],
            state,
        };
        dispatch(self.isa, kernel);
    }

    /// The gradient of y of a token: that of o, times the gate.
    fn gated<'c>(&self, chunk: &'c Chunk, index: usize) -> impl Iterator<Item = f32> + 'c {
        let (dim, has_z) = (self.forward.problem.head_dim, self.forward.problem.has_z);
        let own = index * dim..(index + 1) * dim;
        let gate = move |z: f32| if has_z { z / (1.0 + (-z).exp()) } else { 1.0 };
        chunk.d_o[own.clone()].iter().zip(&chunk.z[own]).map(move |(d_o, z)| d_o * gate(*z))
    }

    /// Writes dx and dz of a token, and adds its gradient of D.
    fn write(
        &self,
        chunk: &Chunk,
        (index, token, head): (usize, usize, usize),
        dy: &[f32],
        sums: &Sums,
        dd: &mut [f64],
    ) {
        let problem = self.forward.problem;
        let dim = problem.head_dim;
        let at = self.forward.row(token, head, 0);
        let own = index * dim..(index + 1) * dim;
        let (x, d_o, z) = (&chunk.x[own.clone()], &chunk.d_o[own.clone()], &chunk.z[own]);
        let skip = |p: usize| self.forward.d.get(head * dim + p).copied().unwrap_or(0.0);
        let step = chunk.steps[index];
        let dx: Vec<f32> = (0..dim).map(|p| step * sums.inputs[p] + skip(p) * dy[p]).collect();
        // SAFETY: this block alone has this token of this head.
        E::narrow(&dx, unsafe { self.dx.slice(at..at + dim) });
        if let Some(to) = &self.dz {
            let of = |p: usize| {
                let y = sums.outputs[p] + skip(p) * x[p];
                let [sigmoid, complement] = [-z[p], z[p]].map(|z| 1.0 / (1.0 + z.exp()));
                d_o[p] * y * (sigmoid * (1.0 + z[p] * complement))
            };
            let dz: Vec<f32> = (0..dim).map(of).collect();
            // SAFETY: as above.
            E::narrow(&dz, unsafe { to.slice(at..at + dim) });
        }
        dd.iter_mut().zip(dy.iter().zip(x)).for_each(|(dd, (dy, x))| *dd += f64::from(dy * x));
    }

    /// The derivative of a step size by its raw value: 0 outside of the limits.
    fn slope(&self, token: usize, head: usize) -> f64 {
        let problem = self.forward.problem;
        let bias = self.dt_bias.as_ref().map_or(0.0, |bias| f64::from(bias[head]));
        let raw = f64::from(self.dt[token * problem.heads + head]) + bias;
        let (value, slope) = match problem.dt_softplus {
            true if raw <= 20.0 => (raw.exp().ln_1p(), 1.0 / (1.0 + (-raw).exp())),
            _ => (raw, 1.0),
        };
        if (problem.dt_min..=problem.dt_max).contains(&value) { slope } else { 0.0 }
    }
}

/// Step sizes of consecutive tokens.
struct Steps<'a, E> {
    forward: &'a Operands<'a, E>,
    head: usize,
    tokens: Range<usize>,
    to: &'a mut [f32],
}

impl<E: Element> SimdKernel for Steps<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.forward.steps(simd, self.head, self.tokens, self.to);
    }
}

/// `h <- decay h + step x (outer) B`
struct Advance<'a> {
    x: &'a [f32],
    b: &'a [f32],
    step: f32,
    decay: f32,
    state: &'a mut [f32],
}

impl SimdKernel for Advance<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let decay = simd.splat(self.decay);
        for (x, h) in self.x.iter().zip(self.state.chunks_exact_mut(self.b.len().max(1))) {
            let input = simd.splat(self.step * x);
            for (h, b) in h.chunks_exact_mut(S::LANES).zip(self.b.chunks_exact(S::LANES)) {
                // SAFETY: chunks are vectors.
                unsafe {
                    let kept = simd.mul(decay, simd.load(h.as_ptr()));
                    simd.store(h.as_mut_ptr(), simd.fma(input, simd.load(b.as_ptr()), kept));
                }
            }
        }
    }
}

/// One token backwards: adds dy (outer) C to g, the gradient of the state, and to dB and dC; then g decays.
struct Token<'a> {
    /// `[P]`
    x: &'a [f32],
    dy: &'a [f32],
    /// `[padded N]`
    b: &'a [f32],
    c: &'a [f32],
    step: f32,
    decay: f32,
    /// The states before and after the token, `[P, padded N]`.
    before: &'a [f32],
    after: &'a [f32],
    g: &'a mut [f32],
    /// `[padded N]`
    db: &'a mut [f32],
    dc: &'a mut [f32],
}

/// Sums of a token.
struct Sums {
    /// g B and h C, `[P]` each.
    inputs: Vec<f32>,
    outputs: Vec<f32>,
    /// `<g, state before>`
    before: f64,
    /// `x.(g B)`
    step: f64,
}

impl SimdKernel for Token<'_> {
    type Output = Sums;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Sums {
        let Self { x, dy, b, c, step, decay, before, after, g, db, dc } = self;
        let (count, decay) = (b.len(), simd.splat(decay));
        let mut sums = Sums { inputs: Vec::new(), outputs: Vec::new(), before: 0.0, step: 0.0 };
        for (p, (x, dy)) in x.iter().zip(dy).enumerate() {
            let row = p * count..(p + 1) * count;
            let (before, after) = (&before[row.clone()], &after[row.clone()]);
            let g = &mut g[row];
            let (scaled, change) = (simd.splat(step * x), simd.splat(*dy));
            let zero = simd.splat(0.0);
            let (mut of_input, mut of_before, mut of_output) = (zero, zero, zero);
            for at in (0..count).step_by(S::LANES) {
                // SAFETY: rows are whole vectors.
                unsafe {
                    let load = |values: &[f32]| simd.load(values[at..].as_ptr());
                    let (c, h) = (load(c), load(after));
                    let gradient = simd.fma(change, c, load(g));
                    of_input = simd.fma(gradient, load(b), of_input);
                    of_before = simd.fma(gradient, load(before), of_before);
                    of_output = simd.fma(h, c, of_output);
                    let (of_c, of_b) =
                        (simd.fma(change, h, load(dc)), simd.fma(scaled, gradient, load(db)));
                    simd.store(dc[at..].as_mut_ptr(), of_c);
                    simd.store(db[at..].as_mut_ptr(), of_b);
                    simd.store(g[at..].as_mut_ptr(), simd.mul(decay, gradient));
                }
            }
            let of_input = simd.reduce_add(of_input);
            sums.inputs.push(of_input);
            sums.outputs.push(simd.reduce_add(of_output));
            sums.before += f64::from(simd.reduce_add(of_before));
            sums.step += f64::from(x * of_input);
        }
        sums
    }
}
