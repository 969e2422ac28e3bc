//! An expert's weights are read once for all tokens routed to it: strips of its rows are widened, packed and multiplied
//! with those tokens, first the gate and up projections, then the down projection. The sum over a token's experts is last,
//! in their order.
#![allow(unsafe_code)] // Blocks write disjoint strips and rows of shared buffers.

use super::route::Groups;
use crate::gemm::{Mat, MatMut, PackedB, Store, gemm_packed};
use device::{Device, Isa, SharedMut};
use half::{bf16, f16};
use ops::moe::{Clamp, MoeProblem, Routes, route, scale_names};
use ops::{DType, E4m3, Element, Inputs, TensorMap, U4Pair, elements, elements_mut, floats};
use std::ops::Range;

/// Rows of weights that one block widens and packs.
const STRIP: usize = 64;
/// Tokens that a block multiplies at a time.
const TOKENS: usize = 96;

/// Runs the variant whose kernel name is `kernel`.
pub(super) fn run(
    isa: Isa,
    kernel: &str,
    problem: &MoeProblem,
    inputs: Inputs<'_>,
    device: &Device,
    outputs: &mut TensorMap,
) {
    let of_type = match (problem.dtype, problem.quantized.map(|narrow| narrow.dtype)) {
        (_, Some(DType::U4)) => launch::<bf16, U4Pair>,
        (_, Some(DType::I8)) => launch::<bf16, i8>,
        (_, Some(_)) => launch::<bf16, E4m3>,
        (DType::Bf16, None) => launch::<bf16, bf16>,
        (DType::F16, None) => launch::<f16, f16>,
        (_, None) => launch::<f32, f32>,
    };
    of_type(isa, kernel, problem, inputs, device, outputs);
}

fn launch<E: Element, W: Element>(
    isa: Isa,
    kernel: &str,
    problem: &MoeProblem,
    inputs: Inputs<'_>,
    device: &Device,
    outputs: &mut TensorMap,
) {
    let routes = route(problem, inputs);
    let groups = Groups::of(problem, &routes);
    let x = floats(inputs.tensor("x"));
    let (hidden, inner) = (problem.hidden, problem.intermediate);

    let mut activated = vec![0f32; problem.pairs() * inner]; // [pairs by expert, I]
    let gate_up = Weights::<W>::new(problem, inputs, "w_gate_up"); // [E, 2I, H], or [E, I, H] without gates
    let halves: &[usize] = if problem.gated { &[0, inner] } else { &[0] };
    let bias = inputs.get("gate_up_bias").map(elements::<f32>);
    let to = SharedMut::new(&mut activated);
    strips(device, kernel, (&groups, inner), |scratch, expert, pairs, rows| {
        let first = expert * problem.ups();
        for (half, into) in halves.iter().zip(&mut scratch.packed) {
            let rows = first + half + rows.start..first + half + rows.end;
            gate_up.pack(isa, rows, &mut scratch.wide, into);
        }
        for tile in tiles(pairs) {
            scratch.a.clear();
            for pair in &groups.pairs[tile.clone()] {
                scratch.a.extend_from_slice(&x[pair / problem.of_token() * hidden..][..hidden]);
            }
            let a = Mat::new(&scratch.a, tile.len(), hidden, hidden);
            for (packed, c) in scratch.packed.iter().zip(&mut scratch.c).take(halves.len()) {
                multiply(isa, a, packed, c);
            }
            let [gates, ups] = &scratch.c;
            // Without gates the first products are the ups, used as their own gates.
            let ups = if problem.gated { ups } else { gates };
            for ((gates, ups), pair) in gates.chunks(STRIP).zip(ups.chunks(STRIP)).zip(tile) {
                // SAFETY: this block alone has these channels of these pairs.
                let into = unsafe { to.slice(pair * inner + rows.start..pair * inner + rows.end) };
                if let (Some(bias), Some(clamp)) = (bias, problem.clamp) {
                    let bias = &bias[first + rows.start..];
                    let of = into.iter_mut().zip(gates.iter().zip(ups)).enumerate();
                    of.for_each(|(at, (into, (gate, up)))| {
                        *into = clamped(clamp, gate + bias[at], up + bias[inner + at]);
                    });
                    continue;
                }
                for ((into, gate), up) in into.iter_mut().zip(gates).zip(ups) {
                    *into = up
                        * if problem.gated { gate / (1.0 + (-gate).exp()) } else { gate.max(0.0) };
                }
            }
        }
    });

    let mut made = vec![0f32; problem.pairs() * hidden]; // [pairs by expert, H]
    let down = Weights::<W>::new(problem, inputs, "w_down"); // [E, H, I]
    let to = SharedMut::new(&mut made);
    strips(device, &format!("{kernel}.down"), (&groups, hidden), |scratch, expert, pairs, rows| {
        let from = expert * hidden + rows.start..expert * hidden + rows.end;
        down.pack(isa, from, &mut scratch.wide, &mut scratch.packed[0]);
        for tile in tiles(pairs) {
            let a = &activated[tile.start * inner..tile.end * inner];
            multiply(
                isa,
                Mat::new(a, tile.len(), inner, inner),
                &scratch.packed[0],
                &mut scratch.c[0],
            );
            for (row, pair) in scratch.c[0].chunks(STRIP).zip(tile) {
                // SAFETY: as above.
                let into =
                    unsafe { to.slice(pair * hidden + rows.start..pair * hidden + rows.end) };
                into.copy_from_slice(&row[..into.len()]);
            }
        }
    });

    let bias = inputs.get("down_bias").map(elements::<f32>);
    let sum = Sum { problem, pairs: &groups.pairs, made: &made, routes: &routes, bias };
    let residual = inputs.get("residual").map(elements::<f32>);
    let kernel = format!("{kernel}.sum");
    match problem.out_dtype() {
        DType::F32 => sum.launch::<f32>(device, &kernel, residual, outputs),
        _ => sum.launch::<E>(device, &kernel, residual, outputs),
    }
    elements_mut(outputs.get_mut("chosen")).copy_from_slice(&routes.chosen);
    elements_mut(outputs.get_mut("weights")).copy_from_slice(&routes.weights);
}

/// The clamped gated activation: `g sigmoid(alpha g) (u + 1)` with `g = min(gate, limit)` and `u = clamp(up, -limit, limit)`. NaN
/// stays NaN.
fn clamped(Clamp { limit, alpha }: Clamp, gate: f32, up: f32) -> f32 {
    let (limit, alpha) = (limit as f32, alpha as f32);
    let gate = if gate > limit { limit } else { gate };
    gate / (1.0 + (-alpha * gate).exp()) * (up.clamp(-limit, limit) + 1.0)
}

/// Buffers of one thread.
#[derive(Default)]
struct Scratch {
    wide: Vec<f32>,
    packed: [PackedB; 2],
    /// Rows of the left operand.
    a: Vec<f32>,
    /// Products, rows of [`STRIP`].
    c: [Vec<f32>; 2],
}

/// A launch with a block for each chosen expert and strip of its `rows`; `body` gets the expert, its range of the sorted
/// pairs, and the strip.
fn strips(
    device: &Device,
    kernel: &str,
    (groups, rows): (&Groups, usize),
    body: impl Fn(&mut Scratch, usize, Range<usize>, Range<usize>) + Sync,
) {
    let strips = rows.div_ceil(STRIP);
    let grid = groups.experts.len() * strips;
    device.launch(kernel, grid, Scratch::default, |scratch, block| {
        let (expert, pairs) = &groups.experts[block / strips];
        let start = block % strips * STRIP;
        body(scratch, *expert, pairs.clone(), start..(start + STRIP).min(rows));
    });
}

fn tiles(pairs: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    pairs.clone().step_by(TOKENS).map(move |start| start..(start + TOKENS).min(pairs.end))
}

/// The matrices of all experts `[E, rows, depth]`.
struct Weights<'a, W> {
    values: &'a [W],
    rows: usize,
    depth: usize,
    /// Present when the weights are quantized.
    factors: Option<GroupScales<'a>>,
}

/// Scales of quantized weights and the offsets subtracted after scaling, both `[E, G, rows]`.
struct GroupScales<'a> {
    scale: &'a [f32],
    offset: Option<&'a [f32]>,
    /// The zero point, subtracted before scaling: 8 for uint4 without offsets, else 0.
    middle: f32,
    /// G.
    groups: usize,
    /// Columns of a group.
    size: usize,
}

impl<'a, W: Element> Weights<'a, W> {
    fn new(problem: &MoeProblem, inputs: Inputs<'a>, name: &str) -> Self {
        let tensor = inputs.tensor(name);
        let (rows, depth) = (tensor.shape()[1], tensor.shape()[2]);
        let factors = problem.quantized.map(|narrow| {
            let [scale, offset] = scale_names(name);
            let groups = inputs.tensor(scale).shape()[1];
            let offset = inputs.get(offset).map(elements);
            GroupScales {
                scale: elements(inputs.tensor(scale)),
                middle: if narrow.dtype == DType::U4 && offset.is_none() { 8.0 } else { 0.0 },
                offset,
                groups,
                size: narrow.columns_of(groups, depth),
            }
        });
        Self { values: elements(tensor), rows, depth, factors }
    }

    /// Dequantizes and packs neighbouring rows of all experts' matrices, transposed, as the right operand.
    fn pack(&self, isa: Isa, rows: Range<usize>, wide: &mut Vec<f32>, into: &mut PackedB) {
        let depth = self.depth;
        wide.resize(rows.len() * depth, 0.0);
        let of = |row: usize| row * depth / W::ELEMENTS;
        W::widen(&self.values[of(rows.start)..of(rows.end)], wide);
        if let Some(factors) = &self.factors {
            for (row, wide) in rows.clone().zip(wide.chunks_mut(depth)) {
                let (expert, row) = (row / self.rows, row % self.rows);
                for (group, wide) in wide.chunks_mut(factors.size).enumerate() {
                    let at = (expert * factors.groups + group) * self.rows + row;
                    let (scale, middle) = (factors.scale[at], factors.middle);
                    let offset = factors.offset.map_or(0.0, |offset| offset[at]);
                    wide.iter_mut().for_each(|w| *w = (*w - middle) * scale - offset);
                }
            }
        }
        into.pack(isa, Mat::new(wide, rows.len(), depth, depth).t());
    }
}

fn multiply(isa: Isa, a: Mat<'_>, packed: &PackedB, c: &mut Vec<f32>) {
    c.resize(a.rows * STRIP, 0.0);
    let into = MatMut::new(c, a.rows, packed.columns(), STRIP);
    gemm_packed(isa, 1.0, a, packed, Store::Replace, into);
}

/// The sum over a token's experts.
struct Sum<'a> {
    problem: &'a MoeProblem,
    /// Those that were computed, by expert.
    pairs: &'a [usize],
    /// `[pairs by expert, H]`.
    made: &'a [f32],
    routes: &'a Routes,
    /// `[L, H]`.
    bias: Option<&'a [f32]>,
}

impl Sum<'_> {
    fn launch<O: Element>(
        &self,
        device: &Device,
        kernel: &str,
        residual: Option<&[f32]>,
        outputs: &mut TensorMap,
    ) {
        let (hidden, k) = (self.problem.hidden, self.problem.of_token());
        let mut place = vec![None; self.problem.pairs()];
        for (at, pair) in self.pairs.iter().enumerate() {
            place[*pair] = Some(at);
        }
        let o = SharedMut::new(elements_mut::<O>(outputs.get_mut("o")));
        device.launch(
            kernel,
            self.problem.tokens,
            || vec![0f32; hidden],
            |sum, token| {
                sum.fill(0.0);
                for pair in token * k..(token + 1) * k {
                    let Some(place) = place[pair] else { continue };
                    let made = &self.made[place * hidden..][..hidden];
                    let weight = self.routes.weights[pair];
                    sum.iter_mut().zip(made).for_each(|(sum, y)| *sum += weight * y);
                    let expert = self.routes.chosen[pair] as usize;
                    if let (Some(bias), Some(own)) = (self.bias, self.problem.place_of(expert)) {
                        let own = &bias[own * hidden..][..hidden];
                        sum.iter_mut().zip(own).for_each(|(sum, y)| *sum += weight * y);
                    }
                }
                let row = token * hidden..(token + 1) * hidden;
                let scale = self.problem.scale as f32;
                match residual {
                    Some(residual) => sum
                        .iter_mut()
                        .zip(&residual[row.clone()])
                        .for_each(|(sum, residual)| *sum = residual + scale * *sum),
                    None => sum.iter_mut().for_each(|sum| *sum *= scale),
                }
                // SAFETY: this block alone has this token.
                O::narrow(sum, unsafe { o.slice(row) });
            },
        );
    }
}
