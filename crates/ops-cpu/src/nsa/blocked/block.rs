//! One block of the launch: a few queries of one sequence against one key head, all branches.

use super::branch::{Buffers, KeysAndValues, Runs, Source, attend};
use super::pool::Pooled;
use super::select::{importance, top};
use crate::simd::{Simd, SimdKernel};
use crate::stored::{Stored, StoredMut};
use device::SharedMut;
use ops::nsa::{Gate, NsaProblem};
use std::borrow::Cow;
use std::ops::Range;

/// The tensors of one call, shared by all blocks.
pub(super) struct Context<'a> {
    pub(super) problem: &'a NsaProblem,
    pub(super) q: Stored<'a>,
    pub(super) k: Stored<'a>,
    pub(super) v: Stored<'a>,
    /// Gate tensors of the three branches.
    pub(super) gates: [Option<Cow<'a, [f32]>>; 3],
    pub(super) given: Option<&'a [i32]>,
    /// Use the bfloat16 dot product of AVX512-BF16 for inputs in bfloat16.
    pub(super) pairs: bool,
    pub(super) compressed_keys: Option<Pooled>,
    pub(super) compressed_values: Option<Pooled>,
    pub(super) o: StoredMut<'a>,
    pub(super) indices: SharedMut<'a, i32>,
    pub(super) reads: SharedMut<'a, i32>,
}

/// Queries of one sequence and one key head that a block computes together.
#[derive(Debug, Clone)]
pub(super) struct Tile {
    pub(super) sequence: usize,
    pub(super) kv_head: usize,
    /// Relative to the sequence's first query.
    pub(super) queries: Range<usize>,
}

/// One thread's buffers.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    buffers: Buffers,
    runs: Runs,
    row: Vec<f32>,
    importance: Vec<f32>,
    order: Vec<u32>,
    /// Selected blocks of all queries, concatenated; query `i` has `chosen_ends[i - 1] .. chosen_ends[i]`.
    chosen: Vec<u32>,
    chosen_ends: Vec<usize>,
    union: Vec<u32>,
    reads: Vec<[usize; 3]>,
}

impl Scratch {
    fn chosen_of(&self, query: usize) -> &[u32] {
        let start = if query == 0 { 0 } else { self.chosen_ends[query - 1] };
        &self.chosen[start..self.chosen_ends[query]]
    }
}

/// The block's work.
pub(super) struct Block<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) tile: &'a Tile,
    pub(super) scratch: &'a mut Scratch,
}

impl SimdKernel for Block<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { context, tile, scratch } = self;
        let problem = context.problem;
        let keys = problem.keys.range(tile.sequence);
        let queries = problem.queries.range(tile.sequence);
        let here = TilePosition {
            context,
            problem,
            kv_head: tile.kv_head,
            first_row: queries.start + tile.queries.start,
            count: tile.queries.len(),
            // Queries are the last of the keys.
            first_position: (keys.len() + tile.queries.start) as i64 - queries.len() as i64,
            keys,
        };
        scratch.reads.clear();
        scratch.reads.resize(here.count, [0; 3]);
        here.load_queries(s, scratch);
        let last_seen = here.seen(here.count - 1);
        let compressed_seen = problem.compressed_tokens(last_seen);
        let mut selected = false;
        // One loop for the three branches, so that the attention code is compiled once.
        for branch in 0..3 {
            let units = match branch {
                0 if !problem.scores_compressed() => continue,
                1 if !problem.branches.selected => continue,
                2 if !problem.branches.window => continue,
                // A vector of lanes holds one query or several; where it holds one, the vectors of a query share
                // their gathered keys, and where it holds several, they see the union with masks.
                1 if problem.group() % S::LANES == 0 => problem.group() / S::LANES,
                1 => 1,
                _ => here.vectors::<S>(),
            };
            if branch == 1 {
                here.select(s, scratch, compressed_seen, last_seen);
                selected = true;
            }
            if context.gates[branch].is_some() {
                here.load_gates(branch, &mut scratch.buffers.gate);
            }
            let sides = here.sides(branch, tile);
            for start in (0..here.vectors::<S>()).step_by(units) {
                let unit = start..start + units;
                here.find_runs::<S>(branch, &unit, compressed_seen, scratch);
                let Scratch { runs, buffers, .. } = &mut *scratch;
                attend(s, unit.clone(), problem.group(), runs, sides, buffers);
                for query in here.queries_of::<S>(&unit) {
                    // A query in two units reads its tokens twice; only the first unit's reads are counted.
                    if query * problem.group() >= unit.start * S::LANES {
                        scratch.reads[query][branch] = scratch.runs.reads(query);
                    }
                }
            }
        }
        if !selected {
            scratch.chosen.clear();
            scratch.chosen_ends.clear();
            scratch.chosen_ends.resize(here.count, 0);
        }
        here.store(s, scratch);
    }
}

/// The tile with its positions resolved.
struct TilePosition<'a> {
    context: &'a Context<'a>,
    problem: &'a NsaProblem,
    kv_head: usize,
    /// Row of the tile's first query in q.
    first_row: usize,
    count: usize,
    /// Position of that query among the keys; negative if it precedes them.
    first_position: i64,
    /// Rows of the sequence in k.
    keys: Range<usize>,
}

impl<'a> TilePosition<'a> {
    /// Tokens at or before a query of the tile.
    #[inline(always)]
    fn seen(&self, query: usize) -> usize {
        (self.first_position + query as i64 + 1).max(0) as usize
    }

    fn vectors<S: Simd>(&self) -> usize {
        (self.count * self.problem.group()).div_ceil(S::LANES)
    }

    /// Queries with lanes in these vectors.
    fn queries_of<S: Simd>(&self, unit: &Range<usize>) -> Range<usize> {
        let group = self.problem.group();
        unit.start * S::LANES / group..(unit.end * S::LANES).div_ceil(group).min(self.count)
    }

    /// Row of q, o and gates of a lane.
    fn row(&self, lane: usize) -> usize {
        let group = self.problem.group();
        let query = self.first_row + lane / group;
        query * self.problem.heads + self.kv_head * group + lane % group
    }

    /// Loads the queries, scaled, with one lane per query and head.
    #[inline(always)]
    fn load_queries<S: Simd>(&self, s: S, scratch: &mut Scratch) {
        let Scratch { buffers, row, .. } = scratch;
        let (d, dv) = (self.problem.head_dim, self.problem.value_dim);
        buffers.reset::<S>(self.vectors::<S>(), d, dv);
        row.resize(d.max(dv), 0.0);
        #[cfg(target_arch = "x86_64")]
        if self.context.pairs {
            buffers.pairs.reset(self.vectors::<S>(), d, dv);
        }
        for lane in 0..self.count * self.problem.group() {
            self.context.q.widen(s, self.row(lane) * d, &mut row[..d]);
            #[cfg(target_arch = "x86_64")]
            if self.context.pairs {
                buffers.pairs.put_query(lane, &row[..d]);
            }
            let start = lane / S::LANES * d * S::LANES + lane % S::LANES;
            for (x, to) in row[..d].iter().zip(buffers.q[start..].iter_mut().step_by(S::LANES)) {
                *to = *x * self.problem.scale as f32;
            }
        }
    }

    fn load_gates(&self, branch: usize, gate: &mut [f32]) {
        let raw =
            |branch: usize, row: usize| self.context.gates[branch].as_ref().map(|gate| gate[row]);
        for (lane, to) in gate.iter_mut().enumerate().take(self.count * self.problem.group()) {
            let row = self.row(lane);
            let own = raw(branch, row).unwrap_or(0.0);
            *to = match self.problem.gate {
                Gate::Given => own,
                Gate::Sigmoid => 1.0 / (1.0 + (-own).exp()),
                Gate::Softmax => {
                    // 1 / sum of e^(x - own): infinite terms give 0, as they should.
                    let terms = (0..3).filter_map(|branch| raw(branch, row));
                    1.0 / terms.map(|x| (x - own).exp()).sum::<f32>()
                }
            };
        }
    }

    fn sides(&self, branch: usize, tile: &Tile) -> KeysAndValues<'a> {
        let (d, dv) = (self.problem.head_dim, self.problem.value_dim);
        let kv_heads = self.problem.kv_heads;
        let input = |stored, size| {
            let start = (self.keys.start * kv_heads + self.kv_head) * size;
            (Source::Input { stored, start, stride: kv_heads * size, size }, size)
        };
        let pooled = |pooled: &'a Option<Pooled>, size| {
            let pooled = pooled.as_ref()?;
            Some((Source::Pooled { values: pooled.of(tile.sequence, tile.kv_head), size }, size))
        };
        let (keys, values) = match branch {
            0 => {
                let none = (Source::Pooled { values: &[], size: d }, d);
                let keys = pooled(&self.context.compressed_keys, d).unwrap_or(none);
                (keys, pooled(&self.context.compressed_values, dv))
            }
            _ => (input(self.context.k, d), Some(input(self.context.v, dv))),
        };
        KeysAndValues { keys, values, scale: self.problem.scale as f32, pairs: self.context.pairs }
    }

    /// Selects the blocks of every query: those of the input, or by importance from the compressed branch's probabilities.
    #[inline(always)]
    fn select<S: Simd>(
        &self,
        s: S,
        scratch: &mut Scratch,
        compressed_seen: usize,
        last_seen: usize,
    ) {
        let problem = self.problem;
        let Scratch { buffers, importance: scores, order, chosen, chosen_ends, .. } = scratch;
        let blocks = last_seen.div_ceil(problem.select_block);
        if problem.selects() {
            importance(s, problem, self.count, compressed_seen, blocks, buffers, scores);
        }
        chosen.clear();
        chosen_ends.clear();
        for query in 0..self.count {
            let visible = self.seen(query).div_ceil(problem.select_block);
            if let Some(given) = self.context.given {
                let n = problem.select_count;
                let row = (self.first_row + query) * problem.kv_heads + self.kv_head;
                let start = chosen.len();
                let given = given[row * n..][..n].iter();
                chosen.extend(
                    given.filter(|j| **j >= 0 && (**j as usize) < visible).map(|j| *j as u32),
                );
                chosen[start..].sort_unstable();
                // Duplicates are removed: a block listed twice is read once.
                let mut kept = start;
                for at in start..chosen.len() {
                    if at == start || chosen[at] != chosen[kept - 1] {
                        chosen[kept] = chosen[at];
                        kept += 1;
                    }
                }
                chosen.truncate(kept);
            } else {
                top(problem, &scores[query * blocks..][..visible], order, chosen);
            }
            chosen_ends.push(chosen.len());
        }
    }

    /// The tokens that the lanes of a unit see in a branch.
    #[inline(always)]
    fn find_runs<S: Simd>(
        &self,
        branch: usize,
        unit: &Range<usize>,
        compressed: usize,
        scratch: &mut Scratch,
    ) {
        let problem = self.problem;
        let queries = self.queries_of::<S>(unit);
        let mut runs = std::mem::take(&mut scratch.runs);
        runs.clear(self.count);
        match branch {
            0 => runs.add(0..compressed, |query| 0..problem.compressed_tokens(self.seen(query))),
            1 => {
                let mut union = std::mem::take(&mut scratch.union);
                union.clear();
                queries.clone().for_each(|query| union.extend(scratch.chosen_of(query)));
                union.sort_unstable();
                union.dedup();
                let end = self.seen(queries.end - 1);
                for block in &union {
                    let start = *block as usize * problem.select_block;
                    runs.add(start..end.min(start + problem.select_block), |query| {
                        let has = queries.contains(&query)
                            && scratch.chosen_of(query).binary_search(block).is_ok();
                        start..if has { self.seen(query).max(start) } else { start }
                    });
                }
                scratch.union = union;
            }
            _ => {
                let start = |query| self.seen(query).saturating_sub(problem.window);
                runs.add(start(0)..self.seen(self.count - 1), |query| {
                    start(query)..self.seen(query)
                });
            }
        }
        scratch.runs = runs;
    }

    /// Writes the tile's rows of every output.
    #[inline(always)]
    fn store<S: Simd>(&self, _simd: S, scratch: &mut Scratch) {
        let problem = self.problem;
        let (dv, n) = (problem.value_dim, problem.select_count);
        for query in 0..self.count {
            let row = (self.first_row + query) * problem.kv_heads + self.kv_head;
            // SAFETY: tiles are disjoint in queries and key heads, and so are these rows.
            let (indices, reads) = unsafe {
                (
                    self.context.indices.slice(row * n..(row + 1) * n),
                    self.context.reads.slice(row * 3..(row + 1) * 3),
                )
            };
            let chosen = scratch.chosen_of(query).iter().map(|j| *j as i32);
            let padded = chosen.chain(std::iter::repeat(-1));
            indices.iter_mut().zip(padded).for_each(|(to, block)| *to = block);
            reads.iter_mut().zip(scratch.reads[query]).for_each(|(to, read)| *to = read as i32);
        }
        let Scratch { buffers, row, .. } = scratch;
        for lane in 0..self.count * problem.group() {
            let start = lane / S::LANES * dv * S::LANES + lane % S::LANES;
            let from = buffers.o[start..].iter().step_by(S::LANES);
            row[..dv].iter_mut().zip(from).for_each(|(to, x)| *to = *x);
            let at = self.row(lane) * dv;
            // SAFETY: as above; the lane's query and head belong to this tile alone.
            unsafe { self.context.o.narrow(at..at + dv, &row[..dv]) };
        }
    }
}
