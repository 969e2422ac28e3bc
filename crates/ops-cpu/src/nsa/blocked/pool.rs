//! Compressed tokens, once per sequence and key head, in float32.

use super::tile::{Lanes, LeftMatrix, multiply};
use crate::simd::{Simd, SimdKernel, dispatch};
use crate::stored::Stored;
use device::{Device, Isa, SharedMut};
use ops::nsa::{NsaProblem, Pooling};
use ops::{Inputs, Tensor, floats};
use std::borrow::Cow;
use std::ops::Range;

/// Compressed tokens of one block of the launch. Means are cheap: small panels balance a short launch.
const MEAN_PANEL: usize = 16;
/// Compressed tokens of a block with learned pooling, which reads its matrix once per panel.
const LEARNED_PANEL: usize = 64;
/// Rows of the learned matrix widened at a time.
const SLICE: usize = 64;

/// Compressed keys or values of every sequence and key head.
pub(super) struct Pooled {
    values: Vec<f32>,
    size: usize,
    kv_heads: usize,
    /// First compressed token of each sequence, all key heads together, and their number at the end.
    starts: Vec<usize>,
}

impl Pooled {
    fn place(&self, sequence: usize, head: usize) -> Range<usize> {
        let start = self.starts[sequence];
        let count = (self.starts[sequence + 1] - start) / self.kv_heads;
        let first = start + head * count;
        first * self.size..(first + count) * self.size
    }

    /// From an input tensor `[B, Nc, Hkv, size]`: converted to float32, contiguous per head.
    pub(super) fn given(problem: &NsaProblem, tensor: &Tensor, size: usize) -> Self {
        let kv_heads = problem.kv_heads;
        let from = floats(tensor);
        let counts = problem.keys.iter().map(|keys| problem.compressed_tokens(keys.len()));
        let mut starts = vec![0];
        let mut values = Vec::with_capacity(from.len());
        for (sequence, count) in counts.enumerate() {
            let first = starts[sequence];
            starts.push(first + count * kv_heads);
            for head in 0..kv_heads {
                let rows = (0..count).map(|token| first + token * kv_heads + head);
                rows.for_each(|row| values.extend_from_slice(&from[row * size..][..size]));
            }
        }
        Self { values, size, kv_heads, starts }
    }

    /// `[Nc, size]` of one sequence and key head.
    pub(super) fn of(&self, sequence: usize, head: usize) -> &[f32] {
        &self.values[self.place(sequence, head)]
    }
}

/// Compresses tensor `name` (`k` or `v`), with the learned matrix and positions where they were given.
pub(super) fn pool(
    isa: Isa,
    problem: &NsaProblem,
    inputs: Inputs<'_>,
    device: &Device,
    [name, weight, positions]: [&str; 3],
    size: usize,
) -> Pooled {
    let kv_heads = problem.kv_heads;
    let learned = (problem.pooling == Pooling::Learned).then(|| LearnedPooling {
        weight: Stored::new(inputs.tensor(weight)),
        positions: inputs.get(positions).map(floats),
    });
    let panel = if learned.is_some() { LEARNED_PANEL } else { MEAN_PANEL };
    let mut starts = vec![0];
    let mut jobs = Vec::new();
    for (sequence, keys) in problem.keys.iter().enumerate() {
        let count = problem.compressed_tokens(keys.len());
        starts.push(starts[sequence] + count * kv_heads);
        for at in (0..count).step_by(panel) {
            let blocks = at..count.min(at + panel);
            // Means of all heads at once read the input in memory order; a learned matrix belongs to one head.
            if learned.is_some() {
                jobs.extend((0..kv_heads).map(|head| (sequence, head..head + 1, blocks.clone())));
            } else {
                jobs.push((sequence, 0..kv_heads, blocks));
            }
        }
    }
    let total = starts[starts.len() - 1];
    let mut pooled = Pooled { values: Vec::new(), size, kv_heads, starts };
    if total == 0 {
        return pooled;
    }
    let mut values = vec![0f32; total * size];
    let shared = SharedMut::new(&mut values);
    let source = Stored::new(inputs.tensor(name));
    let kernel = format!("nsa.blocked.{isa}.pool");
    device.launch(&kernel, jobs.len(), Scratch::default, |scratch, index| {
        let (sequence, ref heads, ref blocks) = jobs[index];
        let token = problem.keys.range(sequence).start + blocks.start * problem.compress_stride;
        let rows = Rows {
            source,
            start: (token * kv_heads + heads.start) * size,
            stride: kv_heads * size,
            width: heads.len() * size,
        };
        let panel = Panel { problem, rows, learned: learned.as_ref(), heads, blocks, scratch };
        dispatch(isa, panel);
        for (index, head) in heads.clone().enumerate() {
            let first = pooled.place(sequence, head).start;
            let range = first + blocks.start * size..first + blocks.end * size;
            // SAFETY: jobs cover different compressed tokens or heads.
            let to = unsafe { shared.slice(range) };
            let from = scratch.pooled.chunks_exact(heads.len() * size);
            for (to, from) in to.chunks_exact_mut(size).zip(from) {
                to.copy_from_slice(&from[index * size..][..size]);
            }
        }
    });
    pooled.values = values;
    pooled
}

struct LearnedPooling<'a> {
    /// [Hkv, l * size, size]
    weight: Stored<'a>,
    /// [Hkv, l, size]
    positions: Option<Cow<'a, [f32]>>,
}

/// Rows of neighbouring key heads, from the first token of a panel on.
#[derive(Clone, Copy)]
struct Rows<'a> {
    source: Stored<'a>,
    start: usize,
    stride: usize,
    /// Heads times their size.
    width: usize,
}

#[derive(Default)]
struct Scratch {
    rows: Vec<f32>,
    sums: Vec<f32>,
    slice: Vec<f32>,
    /// [blocks, width], the results of the panel.
    pooled: Vec<f32>,
}

struct Panel<'a> {
    problem: &'a NsaProblem,
    rows: Rows<'a>,
    learned: Option<&'a LearnedPooling<'a>>,
    heads: &'a Range<usize>,
    blocks: &'a Range<usize>,
    scratch: &'a mut Scratch,
}

impl SimdKernel for Panel<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.scratch.pooled.resize(self.blocks.len() * self.rows.width, 0.0);
        match self.learned {
            None => self.mean(s),
            Some(learned) => self.learned(s, learned),
        }
    }
}

impl Panel<'_> {
    /// Means through sums of the tokens that neighbouring blocks share. Every sum starts from zero at its own first
    /// token (no running sum over the sequence), so equal blocks give equal means at any position.
    #[inline(always)]
    fn mean<S: Simd>(self, s: S) {
        let (l, d) = (self.problem.compress_block, self.problem.compress_stride);
        let width = self.rows.width;
        let chunk = gcd(l, d);
        let chunks = ((self.blocks.len() - 1) * d + l) / chunk;
        let Scratch { sums, pooled, .. } = self.scratch;
        sums.clear();
        sums.resize(chunks * width, 0.0);
        for (index, sum) in sums.chunks_exact_mut(width).enumerate() {
            for token in index * chunk..(index + 1) * chunk {
                self.rows.source.add_to(s, self.rows.start + token * self.rows.stride, sum);
            }
        }
        for (index, to) in pooled.chunks_exact_mut(width).enumerate() {
            let first = index * d / chunk * width;
            let sums = &sums[first..first + l / chunk * width];
            to.copy_from_slice(&sums[..width]);
            for sum in sums[width..].chunks_exact(width) {
                to.iter_mut().zip(sum).for_each(|(to, x)| *to += x);
            }
            to.iter_mut().for_each(|x| *x /= l as f32);
        }
    }

    /// `(tokens end to end + positions) W`, as one product: block `i` starts `d` tokens after block `i - 1`, so the
    /// overlapping rows of the left matrix are a stride, not a copy. The positions' part is the same for all blocks.
    #[inline(always)]
    fn learned<S: Simd>(self, s: S, learned: &LearnedPooling<'_>) {
        let (l, d) = (self.problem.compress_block, self.problem.compress_stride);
        // A panel of learned pooling has one head.
        let (head, size, count) = (self.heads.start, self.rows.width, self.blocks.len());
        let tokens = (count - 1) * d + l;
        let depth = l * size;
        let Scratch { rows, sums, slice, pooled } = self.scratch;
        rows.resize(tokens * size, 0.0);
        for (token, row) in rows.chunks_exact_mut(size).enumerate() {
            self.rows.source.widen(s, self.rows.start + token * self.rows.stride, row);
        }
        let positions = learned.positions.as_ref().map(|all| &all[head * depth..][..depth]);
        let vectors = size.div_ceil(S::LANES);
        slice.clear();
        slice.resize((vectors * SLICE + 1) * S::LANES, 0.0);
        // One row more than blocks: the positions' part.
        sums.resize(vectors * (count + 1) * S::LANES, 0.0);
        for start in (0..depth).step_by(SLICE) {
            let here = SLICE.min(depth - start);
            for row in 0..here {
                let from = (head * depth + start + row) * size;
                for vector in 0..vectors {
                    let columns = vector * S::LANES..size.min((vector + 1) * S::LANES);
                    let to = &mut slice[(vector * SLICE + row) * S::LANES..][..columns.len()];
                    learned.weight.widen(s, from + columns.start, to);
                }
            }
            let lanes = Lanes {
                vectors,
                right_stride: SLICE * S::LANES,
                out_stride: (count + 1) * S::LANES,
            };
            let left = LeftMatrix {
                data: &rows[start..],
                rows: count,
                depth: here,
                row_stride: d * size,
                depth_stride: 1,
            };
            multiply(s, left, slice, sums, lanes, start > 0);
            let none = [0f32; SLICE];
            let data = positions.map_or(&none[..here], |all| &all[start..start + here]);
            let left = LeftMatrix { data, rows: 1, depth: here, row_stride: 0, depth_stride: 1 };
            multiply(s, left, slice, &mut sums[count * S::LANES..], lanes, start > 0);
        }
        for (index, to) in pooled.chunks_exact_mut(size).enumerate() {
            for (column, to) in to.iter_mut().enumerate() {
                let lane = |row: usize| {
                    let vector = column / S::LANES;
                    sums[(vector * (count + 1) + row) * S::LANES + column % S::LANES]
                };
                *to = lane(index) + lane(count);
            }
        }
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
