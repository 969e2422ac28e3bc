//! The gradient, tile by tile, by float32 products. `crates/ops/src/attention/gradient.rs` has the formulas.
//!
//! Two launches recompute the weights of each tile from lse: one has a block for each tile of keys, which sums dk and dv over the queries
//! that see it; the other has a block for each tile of queries, which sums dq over its keys. No sum is shared by blocks, so the result does
//! not depend on the number of threads. As in the forward variants, the rows of a group's heads are stacked: row r is query r / G.
#![allow(unsafe_code)] // Blocks write disjoint parts of the outputs; vectors through raw pointers.

use crate::gemm::{Mat, MatMut, PackedB, Store, gemm_f32, gemm_packed};
use crate::simd::{Simd, SimdKernel, dispatch, math};
use device::{Device, Isa, SharedMut};
use ops::attention::AttentionProblem;
use ops::{Element, GradientProblem, Inputs, TensorMap, elements, elements_mut};
use std::ops::Range;

/// Stacked rows and keys of a tile.
const ROWS: usize = 96;
const KEYS: usize = 96;

/// It runs every problem.
pub(super) fn why_not(_: &GradientProblem<AttentionProblem>) -> Option<String> {
    None
}

/// Runs the variant whose kernel name is `kernel`.
pub(super) fn run<E: Element>(
    isa: Isa,
    kernel: &str,
    problem: &GradientProblem<AttentionProblem>,
    inputs: Inputs<'_>,
    device: &Device,
    outputs: &mut TensorMap,
) {
    let problem = &problem.forward;
    let [mut dq, mut dk, mut dv] = ["dq", "dk", "dv"].map(|name| outputs.remove(name));
    let operands = Operands::<E> {
        isa,
        problem,
        q: elements(inputs.tensor("q")),
        k: elements(inputs.tensor("k")),
        v: elements(inputs.tensor(problem.values())),
        o: elements(inputs.tensor("o")),
        d_o: elements(inputs.tensor("do")),
        lse: elements(inputs.tensor("lse")),
        dlse: inputs.get("dlse").map(elements),
        dq: SharedMut::new(elements_mut(dq.as_mut())),
        dk: SharedMut::new(elements_mut(dk.as_mut())),
        dv: dv.as_mut().map(|dv| SharedMut::new(elements_mut(Some(dv)))),
    };
    let [of_keys, of_rows] = tiles(problem);
    device.launch(kernel, of_keys.len(), Scratch::default, |scratch, block| {
        operands.sum_over_rows(&of_keys[block], scratch);
    });
    device.launch(&format!("{kernel}.dq"), of_rows.len(), Scratch::default, |scratch, block| {
        operands.sum_over_keys(&of_rows[block], scratch);
    });
    let all = [("dq", dq), ("dk", dk), ("dv", dv)];
    outputs.extend(all.into_iter().filter_map(|(name, tensor)| Some((name.to_owned(), tensor?))));
}

/// A range of keys, or of stacked rows, of one key head of a sequence.
struct Tile {
    sequence: usize,
    kv_head: usize,
    range: Range<usize>,
}

/// The tiles of keys and of stacked rows.
fn tiles(problem: &AttentionProblem) -> [Vec<Tile>; 2] {
    let mut all = [Vec::new(), Vec::new()];
    for (sequence, (queries, keys)) in problem.lengths().enumerate() {
        let sizes = [(keys, KEYS), (queries * problem.group(), ROWS)];
        for (tiles, (length, size)) in all.iter_mut().zip(sizes) {
            for start in (0..length).step_by(size) {
                let range = start..length.min(start + size);
                let tile = |kv_head| Tile { sequence, kv_head, range: range.clone() };
                tiles.extend((0..problem.kv_heads).map(tile));
            }
        }
    }
    all
}

/// The tensors of one call.
struct Operands<'a, E> {
    isa: Isa,
    problem: &'a AttentionProblem,
    /// `[query rows, H, D]`
    q: &'a [E],
    /// `[key rows, Hkv, D]`
    k: &'a [E],
    /// `[key rows, Hkv, Dv]`, or the keys.
    v: &'a [E],
    /// `[query rows, H, Dv]`
    o: &'a [E],
    d_o: &'a [E],
    /// `[B, H, Tq]` or `[H, total]`
    lse: &'a [f32],
    dlse: Option<&'a [f32]>,
    dq: SharedMut<'a, E>,
    dk: SharedMut<'a, E>,
    dv: Option<SharedMut<'a, E>>,
}

/// Buffers of one thread.
#[derive(Default)]
struct Scratch {
    rows: Rows,
    keys: Keys,
    /// Logits, then weights p: `[ROWS, KEYS]`.
    p: Vec<f32>,
    /// Gradients of weights, then those of logits: `[ROWS, KEYS]`.
    ds: Vec<f32>,
    /// Sums of a tile: dq or dk, `[ROWS or KEYS, D]`, and dv, `[KEYS, Dv]`.
    sums: [Vec<f32>; 2],
    packed: PackedB,
}

/// A tile of stacked rows in float32.
#[derive(Default)]
struct Rows {
    /// `[rows, D]`
    q: Vec<f32>,
    /// `[rows, Dv]`
    d_o: Vec<f32>,
    lse: Vec<f32>,
    /// do.o - dlse
    delta: Vec<f32>,
}

/// A tile of keys in float32.
#[derive(Default)]
struct Keys {
    /// `[keys, D]`
    k: Vec<f32>,
    /// The transposes, `[D, keys]` and `[Dv, keys]`.
    k_packed: PackedB,
    v_packed: PackedB,
}

impl<E: Element> Operands<'_, E> {
    /// dk and dv of a tile of keys.
    fn sum_over_rows(&self, tile: &Tile, scratch: &mut Scratch) {
        let Scratch { rows, keys, p, ds, sums: [dk, dv], packed } = scratch;
        let (problem, isa, count) = (self.problem, self.isa, tile.range.len());
        let (dim, value_dim, group) = (problem.head_dim, problem.value_dim, problem.group());
        let queries = problem.queries.range(tile.sequence).len();
        self.load_keys(tile, keys);
        zero(dk, count * dim);
        zero(dv, count * value_dim);
        for start in (0..queries * group).step_by(ROWS) {
            let range = start..(start + ROWS).min(queries * group);
            let of_rows = Tile { range, ..*tile };
            if !overlap(&self.seen(&of_rows), &tile.range) {
                continue;
            }
            self.load_rows(&of_rows, rows);
            self.weights(&of_rows, &tile.range, rows, keys, [p, ds]);
            let height = of_rows.range.len();
            let transposed = |data| Mat::new(data, height, count, KEYS).t();
            let (d_o, q) = (
                Mat::new(&rows.d_o, height, value_dim, value_dim),
                Mat::new(&rows.q, height, dim, dim),
            );
            let to = MatMut::new(dv, count, value_dim, value_dim);
            gemm_f32(isa, 1.0, transposed(p), d_o, Store::Add, to, packed);
            let to = MatMut::new(dk, count, dim, dim);
            gemm_f32(isa, problem.scale as f32, transposed(ds), q, Store::Add, to, packed);
        }
        for (index, j) in tile.range.clone().enumerate() {
            let at = problem.keys.row(tile.sequence, j) * problem.kv_heads + tile.kv_head;
            let (dk, dv) = (&mut dk[index * dim..][..dim], &dv[index * value_dim..][..value_dim]);
            match &self.dv {
                // SAFETY: this block alone has these keys of this head.
                Some(to) => {
                    E::narrow(dv, unsafe { to.slice(at * value_dim..(at + 1) * value_dim) })
                }
                None => dk.iter_mut().zip(dv).for_each(|(dk, dv)| *dk += dv),
            }
            // SAFETY: as above.
            E::narrow(dk, unsafe { self.dk.slice(at * dim..(at + 1) * dim) });
        }
    }

    /// dq of a tile of stacked rows.
    fn sum_over_keys(&self, tile: &Tile, scratch: &mut Scratch) {
        let Scratch { rows, keys, p, ds, sums: [dq, _], packed } = scratch;
        let (problem, height) = (self.problem, tile.range.len());
        let dim = problem.head_dim;
        self.load_rows(tile, rows);
        zero(dq, height * dim);
        let seen = self.seen(tile);
        for start in seen.clone().step_by(KEYS) {
            let of_keys = Tile { range: start..(start + KEYS).min(seen.end), ..*tile };
            self.load_keys(&of_keys, keys);
            self.weights(tile, &of_keys.range, rows, keys, [p, ds]);
            let count = of_keys.range.len();
            let (ds, k) = (Mat::new(ds, height, count, KEYS), Mat::new(&keys.k, count, dim, dim));
            let to = MatMut::new(dq, height, dim, dim);
            gemm_f32(self.isa, problem.scale as f32, ds, k, Store::Add, to, packed);
        }
        for (row, dq) in tile.range.clone().zip(dq.chunks(dim)) {
            let at = self.query(tile, row).0 * dim;
            // SAFETY: this block alone has this row.
            E::narrow(dq, unsafe { self.dq.slice(at..at + dim) });
        }
    }

    /// Computes the weights p of a tile and the gradients of its logits ds, 0 where a key is not visible.
    fn weights(
        &self,
        rows: &Tile,
        keys: &Range<usize>,
        of_rows: &Rows,
        of_keys: &Keys,
        [p, ds]: [&mut Vec<f32>; 2],
    ) {
        let (problem, isa, height) = (self.problem, self.isa, rows.range.len());
        p.resize(ROWS * KEYS, 0.0);
        ds.resize(ROWS * KEYS, 0.0);
        let (dim, value_dim) = (problem.head_dim, problem.value_dim);
        let (q, d_o) = (
            Mat::new(&of_rows.q, height, dim, dim),
            Mat::new(&of_rows.d_o, height, value_dim, value_dim),
        );
        let to = |data| MatMut::new(data, height, keys.len(), KEYS);
        gemm_packed(isa, problem.scale as f32, q, &of_keys.k_packed, Store::Replace, to(p));
        gemm_packed(isa, 1.0, d_o, &of_keys.v_packed, Store::Replace, to(ds));
        let softcap = problem.softcap.map(|cap| cap as f32);
        dispatch(isa, Weights { softcap, of_rows, p, ds });
        let (queries, length) =
            (problem.queries.range(rows.sequence).len(), problem.keys.len(rows.sequence));
        let each = p.chunks_mut(KEYS).zip(ds.chunks_mut(KEYS));
        for (row, (p, ds)) in rows.range.clone().zip(each) {
            let visible = problem.mask.visible(queries, length, row / problem.group());
            let [start, end] = [visible.start, visible.end]
                .map(|key| key.clamp(keys.start, keys.end) - keys.start);
            for values in [p, ds] {
                values[..start].fill(0.0);
                values[end.max(start)..].fill(0.0);
            }
        }
    }

    /// The keys that some of these rows see.
    fn seen(&self, rows: &Tile) -> Range<usize> {
        let problem = self.problem;
        let (queries, keys) =
            (problem.queries.range(rows.sequence).len(), problem.keys.len(rows.sequence));
        let group = problem.group();
        let asked = rows.range.start / group..rows.range.end.div_ceil(group);
        problem.mask.visible_to_any(queries, keys, asked)
    }

    /// The place of a stacked row in `[query rows, H]`, and in lse.
    fn query(&self, tile: &Tile, row: usize) -> (usize, usize) {
        let (problem, group) = (self.problem, self.problem.group());
        let (query, head) = (row / group, tile.kv_head * group + row % group);
        let token = problem.queries.range(tile.sequence).start + query;
        let lse = match problem.queries.batch_and_tokens() {
            Some((_, tokens)) => (tile.sequence * problem.heads + head) * tokens + query,
            None => head * problem.queries.total() + token,
        };
        (token * problem.heads + head, lse)
    }

    fn load_rows(&self, tile: &Tile, rows: &mut Rows) {
        let (dim, value_dim) = (self.problem.head_dim, self.problem.value_dim);
        let height = tile.range.len();
        rows.q.resize(height * dim, 0.0);
        rows.d_o.resize(height * value_dim, 0.0);
        rows.lse.clear();
        rows.delta.clear();
        let mut o = vec![0.0; value_dim];
        let each = rows.q.chunks_mut(dim).zip(rows.d_o.chunks_mut(value_dim));
        for (row, (q, d_o)) in tile.range.clone().zip(each) {
            let (at, lse) = self.query(tile, row);
            E::widen(&self.q[at * dim..][..dim], q);
            E::widen(&self.d_o[at * value_dim..][..value_dim], d_o);
            E::widen(&self.o[at * value_dim..][..value_dim], &mut o);
            let products = o.iter().zip(&*d_o).map(|(o, d_o)| f64::from(*o) * f64::from(*d_o));
            let dlse = self.dlse.map_or(0.0, |dlse| f64::from(dlse[lse]));
            rows.delta.push((products.sum::<f64>() - dlse) as f32);
            rows.lse.push(self.lse[lse]);
        }
    }

    fn load_keys(&self, tile: &Tile, keys: &mut Keys) {
        let problem = self.problem;
        let (dim, value_dim, count) = (problem.head_dim, problem.value_dim, tile.range.len());
        let mut v = vec![0.0; count * value_dim];
        keys.k.resize(count * dim, 0.0);
        let each = keys.k.chunks_mut(dim).zip(v.chunks_mut(value_dim));
        for (j, (k, v)) in tile.range.clone().zip(each) {
            let at = problem.keys.row(tile.sequence, j) * problem.kv_heads + tile.kv_head;
            E::widen(&self.k[at * dim..][..dim], k);
            E::widen(&self.v[at * problem.value_stride()..][..value_dim], v);
        }
        keys.k_packed.pack(self.isa, Mat::new(&keys.k, count, dim, dim).t());
        keys.v_packed.pack(self.isa, Mat::new(&v, count, value_dim, value_dim).t());
    }
}

/// Turns logits into weights p = exp(logit - lse), and products do.v into p (do.v - delta), times the slope of a soft cap.
struct Weights<'a> {
    softcap: Option<f32>,
    of_rows: &'a Rows,
    p: &'a mut [f32],
    ds: &'a mut [f32],
}

impl SimdKernel for Weights<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let one = simd.splat(1.0);
        let tiles = self.p.chunks_exact_mut(KEYS).zip(self.ds.chunks_exact_mut(KEYS));
        let rows = self.of_rows.lse.iter().zip(&self.of_rows.delta);
        for ((lse, delta), (p, ds)) in rows.zip(tiles) {
            let (lse, delta) = (simd.splat(*lse), simd.splat(*delta));
            for (p, ds) in p.chunks_exact_mut(S::LANES).zip(ds.chunks_exact_mut(S::LANES)) {
                // SAFETY: chunks are vectors.
                unsafe {
                    let mut logit = simd.load(p.as_ptr());
                    let mut slope = one;
                    if let Some(cap) = self.softcap {
                        let cap = simd.splat(cap);
                        let tanh = math::tanh(simd, simd.div(logit, cap));
                        logit = simd.mul(cap, tanh);
                        slope = simd.sub(one, simd.mul(tanh, tanh));
                    }
                    let weight = math::exp(simd, simd.sub(logit, lse));
                    let change = simd.sub(simd.load(ds.as_ptr()), delta);
                    simd.store(p.as_mut_ptr(), weight);
                    simd.store(ds.as_mut_ptr(), simd.mul(simd.mul(weight, slope), change));
                }
            }
        }
    }
}

fn zero(values: &mut Vec<f32>, len: usize) {
    values.clear();
    values.resize(len, 0.0);
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}
