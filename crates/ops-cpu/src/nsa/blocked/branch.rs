//! Softmax attention of a few vectors of query lanes over runs of tokens: the one loop that all three branches share.

#[cfg(target_arch = "x86_64")]
use super::pairs::{PairBuffers, PairRows};
use super::tile::{Lanes, LeftMatrix, multiply};
use crate::simd::{Simd, math};
use crate::stored::Stored;
use std::ops::Range;

/// Maximum number of tokens of a run: a tile of keys of 128 elements then fills half of a 64 KiB cache.
pub(super) const RUN: usize = 64;

/// Consecutive tokens that some lanes see.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// First token, counted within the sequence (or among its compressed tokens).
    pub(super) start: usize,
    /// At most [`RUN`].
    pub(super) len: usize,
}

/// The runs of one unit, and what each query of the tile sees of each.
#[derive(Debug, Default)]
pub(super) struct Runs {
    pub(super) runs: Vec<Run>,
    /// For each run and query: the visible tokens, relative to the start of the run.
    seen: Vec<Range<usize>>,
    queries: usize,
}

impl Runs {
    pub(super) fn clear(&mut self, queries: usize) {
        self.runs.clear();
        self.seen.clear();
        self.queries = queries;
    }

    /// Splits `tokens` into runs. `seen` returns the visible tokens of a query, in the numbering of `tokens`; runs that
    /// no query sees are skipped.
    #[inline(always)]
    pub(super) fn add(&mut self, tokens: Range<usize>, seen: impl Fn(usize) -> Range<usize>) {
        for start in tokens.clone().step_by(RUN) {
            let len = RUN.min(tokens.end - start);
            let before = self.seen.len();
            for query in 0..self.queries {
                let seen = seen(query);
                let end = seen.end.clamp(start, start + len) - start;
                self.seen.push((seen.start.clamp(start, start + len) - start).min(end)..end);
            }
            if self.seen[before..].iter().all(Range::is_empty) {
                self.seen.truncate(before);
            } else {
                self.runs.push(Run { start, len });
            }
        }
    }

    pub(super) fn tokens(&self) -> usize {
        self.runs.iter().map(|run| run.len).sum()
    }

    #[inline(always)]
    fn seen(&self, run: usize, query: usize) -> Range<usize> {
        self.seen[run * self.queries + query].clone()
    }

    /// Tokens that `query` reads in these runs.
    pub(super) fn reads(&self, query: usize) -> usize {
        (0..self.runs.len()).map(|run| self.seen(run, query).len()).sum()
    }
}

/// Keys or values of one sequence and key head.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// Rows of an input, widened run by run. `start` is the element where the first token begins.
    Input { stored: Stored<'a>, start: usize, stride: usize, size: usize },
    /// `[tokens, size]`, used without a copy.
    Pooled { values: &'a [f32], size: usize },
}

impl<'a> Source<'a> {
    #[cfg(target_arch = "x86_64")]
    fn pair_rows(self, pairs: bool) -> Option<PairRows<'a>> {
        match self {
            Self::Input { stored: Stored::Bf16(values), start, stride, size } if pairs => {
                Some(PairRows { values, start, stride, size })
            }
            _ => None,
        }
    }

    #[inline(always)]
    fn rows<'b, S: Simd>(self, s: S, run: Run, tile: &'b mut [f32]) -> (&'b [f32], usize)
    where
        'a: 'b,
    {
        match self {
            Self::Pooled { values, size } => (&values[run.start * size..][..run.len * size], size),
            Self::Input { stored, start, stride, size } => {
                for row in 0..run.len {
                    let from = start + (run.start + row) * stride;
                    stored.widen(s, from, &mut tile[row * size..][..size]);
                }
                (tile, size)
            }
        }
    }
}

/// Keys and values of a branch.
#[derive(Clone, Copy)]
pub(super) struct KeysAndValues<'a> {
    /// Keys and D.
    pub(super) keys: (Source<'a>, usize),
    /// Values and Dv; `None` when only the scores are needed.
    pub(super) values: Option<(Source<'a>, usize)>,
    /// Scale of the scores for the bfloat16 product, whose queries are not scaled.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(super) scale: f32,
    /// Whether to use the bfloat16 dot product for bfloat16 inputs.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(super) pairs: bool,
}

/// Buffers of [`attend`]; the layout `[vector][row][LANES]` is that of the register tiles.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// [vectors][D][LANES], the queries of the tile, scaled.
    pub(super) q: Vec<f32>,
    /// [vectors of the unit][tokens][LANES], scores and then their exponentials.
    pub(super) scores: Vec<f32>,
    /// [vectors][LANES], one over the sum of the exponentials; 0 for lanes without visible keys.
    pub(super) inverse: Vec<f32>,
    /// [vectors][LANES], the gates of the branch.
    pub(super) gate: Vec<f32>,
    /// [vectors][Dv][LANES], the gated sum over the branches.
    pub(super) o: Vec<f32>,
    branch: Vec<f32>,
    tile: Vec<f32>,
    #[cfg(target_arch = "x86_64")]
    pub(super) pairs: PairBuffers,
}

impl Buffers {
    /// Resizes the buffers and clears the output.
    pub(super) fn reset<S: Simd>(&mut self, vectors: usize, head_dim: usize, value_dim: usize) {
        self.q.clear();
        self.q.resize(vectors * head_dim * S::LANES, 0.0);
        self.inverse.clear();
        self.inverse.resize(vectors * S::LANES, 0.0);
        self.gate.clear();
        self.gate.resize(vectors * S::LANES, 0.0);
        self.o.clear();
        self.o.resize(vectors * value_dim * S::LANES, 0.0);
        self.branch.resize(vectors * value_dim * S::LANES, 0.0);
        self.tile.resize(RUN * head_dim.max(value_dim), 0.0);
    }
}

/// Adds `gate * softmax(q K^T) V` over the runs to the output lanes of the vectors in `unit`, and stores the
/// exponentials and their inverse sums in `buffers`. Lane `i` of the tile belongs to query `i / group`.
#[inline(always)]
pub(super) fn attend<S: Simd>(
    s: S,
    unit: Range<usize>,
    group: usize,
    runs: &Runs,
    sides: KeysAndValues<'_>,
    buffers: &mut Buffers,
) {
    let tokens = runs.tokens();
    let len = unit.len() * tokens * S::LANES;
    if buffers.scores.len() < len {
        buffers.scores.resize(len, 0.0);
    }
    score(s, &unit, runs, tokens, sides, buffers);
    for (vector, lane) in unit.clone().map(|vector| vector * S::LANES).enumerate() {
        let scores = &mut buffers.scores[vector * tokens * S::LANES..][..tokens * S::LANES];
        let sum = exponentials(s, runs, lane, group, scores);
        let none = s.splat(0.0);
        // Lanes without visible keys have the sum 0 and the result 0.
        let one_over = s.select_gt(sum, none, s.div(s.splat(1.0), sum), none);
        // SAFETY: `inverse` has LANES values for each vector of the tile.
        unsafe { s.store(buffers.inverse[lane..][..S::LANES].as_mut_ptr(), one_over) };
    }
    let Some((_, value_dim)) = sides.values else { return };
    if tokens == 0 {
        return;
    }
    weigh(s, unit.len(), runs, tokens, sides, buffers);
    let stride = value_dim * S::LANES;
    for (vector, lane) in unit.clone().map(|vector| vector * S::LANES).enumerate() {
        let from = &buffers.branch[vector * stride..][..stride];
        let to = &mut buffers.o[(unit.start + vector) * stride..][..stride];
        // SAFETY: every slice is whole vectors long.
        unsafe {
            let gate = s.load(buffers.gate[lane..][..S::LANES].as_ptr());
            let factor = s.mul(gate, s.load(buffers.inverse[lane..][..S::LANES].as_ptr()));
            for (from, to) in from.chunks_exact(S::LANES).zip(to.chunks_exact_mut(S::LANES)) {
                let sum = s.fma(factor, s.load(from.as_ptr()), s.load(to.as_ptr()));
                s.store(to.as_mut_ptr(), sum);
            }
        }
    }
}

/// Scores of the unit's lanes against the keys of the runs.
#[inline(always)]
fn score<S: Simd>(
    s: S,
    unit: &Range<usize>,
    runs: &Runs,
    tokens: usize,
    sides: KeysAndValues<'_>,
    buffers: &mut Buffers,
) {
    let (keys, head_dim) = sides.keys;
    let Buffers { q, scores, tile, .. } = buffers;
    #[cfg(target_arch = "x86_64")]
    if let Some(keys) = keys.pair_rows(sides.pairs) {
        let vectors = (unit.start, unit.len());
        buffers.pairs.score(vectors, &runs.runs, tokens, keys, sides.scale, scores);
        return;
    }
    let right_stride = head_dim * S::LANES;
    let lanes = Lanes { vectors: unit.len(), right_stride, out_stride: tokens * S::LANES };
    let mut first = 0;
    for run in &runs.runs {
        let (data, row_stride) = keys.rows(s, *run, &mut tile[..]);
        let left = LeftMatrix { data, rows: run.len, depth: head_dim, row_stride, depth_stride: 1 };
        let right = &q[unit.start * right_stride..];
        multiply(s, left, right, &mut scores[first * S::LANES..], lanes, false);
        first += run.len;
    }
}

/// Sums of values, weighted by the exponentials, not yet divided by their sum.
#[inline(always)]
fn weigh<S: Simd>(
    s: S,
    vectors: usize,
    runs: &Runs,
    tokens: usize,
    sides: KeysAndValues<'_>,
    buffers: &mut Buffers,
) {
    let Some((values, value_dim)) = sides.values else { return };
    let Buffers { scores, branch, tile, .. } = buffers;
    #[cfg(target_arch = "x86_64")]
    if let Some(values) = values.pair_rows(sides.pairs) {
        buffers.pairs.weigh(vectors, &runs.runs, tokens, values, scores, branch);
        return;
    }
    let out_stride = value_dim * S::LANES;
    let lanes = Lanes { vectors, right_stride: tokens * S::LANES, out_stride };
    let mut first = 0;
    for run in &runs.runs {
        let (data, depth_stride) = values.rows(s, *run, &mut tile[..]);
        let left =
            LeftMatrix { data, rows: value_dim, depth: run.len, row_stride: 1, depth_stride };
        multiply(s, left, &scores[first * S::LANES..], branch, lanes, first > 0);
        first += run.len;
    }
}

/// Masks the scores of one vector of lanes, the first of which is `lane` of the tile, and replaces them by
/// `exp(score - max)`; gives their sums.
#[inline(always)]
fn exponentials<S: Simd>(s: S, runs: &Runs, lane: usize, group: usize, scores: &mut [f32]) -> S::V {
    let hidden = s.splat(f32::NEG_INFINITY);
    let last = runs.queries - 1;
    let queries = (lane / group).min(last)..=((lane + S::LANES - 1) / group).min(last);
    let mut max = hidden;
    let mut first = 0;
    for (index, run) in runs.runs.iter().enumerate() {
        let rows = &mut scores[first * S::LANES..][..run.len * S::LANES];
        first += run.len;
        // SAFETY: chunks are whole vectors, and so are the bounds.
        unsafe {
            if queries.clone().all(|query| runs.seen(index, query) == (0..run.len)) {
                for row in rows.chunks_exact(S::LANES) {
                    max = s.max(max, s.load(row.as_ptr()));
                }
                continue;
            }
            let (mut after, mut before) = ([0f32; MAX_LANES], [0f32; MAX_LANES]);
            for (at, (after, before)) in after.iter_mut().zip(&mut before).enumerate() {
                let seen = runs.seen(index, ((lane + at) / group).min(last));
                (*after, *before) = (seen.start as f32 - 0.5, seen.end as f32 - 0.5);
            }
            let (after, before) = (s.load(after.as_ptr()), s.load(before.as_ptr()));
            for (row, scores) in rows.chunks_exact_mut(S::LANES).enumerate() {
                let row = s.splat(row as f32);
                let score = s.load(scores.as_ptr());
                let score = s.select_gt(row, after, score, hidden);
                let score = s.select_gt(before, row, score, hidden);
                s.store(scores.as_mut_ptr(), score);
                max = s.max(max, score);
            }
        }
    }
    // For a lane without visible keys the difference must stay -inf, not become NaN.
    let max = s.max(max, s.splat(f32::MIN));
    let mut sum = s.splat(0.0);
    for row in scores.chunks_exact_mut(S::LANES) {
        // SAFETY: chunks are whole vectors.
        unsafe {
            let weight = math::exp(s, s.sub(s.load(row.as_ptr()), max));
            s.store(row.as_mut_ptr(), weight);
            sum = s.add(sum, weight);
        }
    }
    sum
}

/// Lanes of the widest vector.
const MAX_LANES: usize = 16;
