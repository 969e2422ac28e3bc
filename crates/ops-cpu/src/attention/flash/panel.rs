//! Blocks with one query per vector lane, for many query rows.
#![allow(unsafe_code)] // Tiles live in scratch that register tiles reach through pointers.

#[cfg(target_arch = "x86_64")]
mod pairs;
mod products;
mod widened;

pub(super) use products::Products;

use super::Operands;
use super::buffer::Buffer;
use super::plan::Item;
use super::softmax::{self, Running};
use crate::simd::{Simd, SimdKernel};
use device::Isa;
use products::CHUNK;
use std::ops::Range;

/// Keys of a tile: a multiple of the rows of every register tile and of a word.
pub(super) const KEYS: usize = 96;
/// Padding rows of buffers, for the last register tile.
const PAD: usize = 16;

/// Query rows of a panel (its lanes) for an instruction set.
pub(super) fn panel_rows(isa: Isa) -> usize {
    match isa {
        Isa::Avx512Bf16 | Isa::Avx512 => 32,
        Isa::Avx2 => 16,
        Isa::Neon => 12,
        Isa::Portable => 8,
    }
}

/// Panels of a block: their queries and outputs share L2 with the key tile.
pub(super) fn panels(isa: Isa, head_dim: usize, value_dim: usize) -> usize {
    const BYTES: usize = 320 << 10;
    (BYTES / (panel_rows(isa) * (head_dim + value_dim) * 4)).clamp(1, 16)
}

/// Rows of a panel's outputs, padded: if 2 channels remain after register tiles of 6, a tile of 4 writes 2 rows too many.
fn output_rows(value_dim: usize) -> usize {
    (value_dim + 2).next_multiple_of(PAD)
}

/// One thread's scratch.
pub(super) struct Scratch {
    /// Rows before or after transposition, [lanes][words].
    rows: Buffer,
    /// [panels][words][lanes].
    q: Buffer,
    /// [chunks][KEYS][CHUNK].
    keys: Buffer,
    /// [KEYS / PER_WORD][Dv].
    values: Buffer,
    /// [KEYS][lanes].
    scores: Buffer,
    /// [panels][Dv][lanes].
    o: Buffer,
    /// Maxima, sums and rescale factors, [3][panels][lanes].
    running: Buffer,
}

impl Scratch {
    pub(super) fn new(isa: Isa, panels: usize, head_dim: usize, value_dim: usize) -> Self {
        let lanes = panel_rows(isa);
        let widest = head_dim.next_multiple_of(PAD).max(output_rows(value_dim));
        Self {
            rows: Buffer::new(lanes * widest),
            q: Buffer::new(panels * head_dim.next_multiple_of(PAD) * lanes),
            keys: Buffer::new(head_dim.div_ceil(CHUNK) * KEYS * CHUNK + PAD * CHUNK),
            values: Buffer::new(KEYS * value_dim + PAD),
            scores: Buffer::new((KEYS + PAD) * lanes),
            o: Buffer::new(panels * output_rows(value_dim) * lanes),
            running: Buffer::new(3 * panels * lanes),
        }
    }
}

/// One block.
pub(super) struct Block<'a, P: Products> {
    pub(super) operands: &'a Operands<'a, P::Element>,
    pub(super) item: &'a Item,
    pub(super) scratch: &'a mut Scratch,
}

impl<P: Products> SimdKernel for Block<'_, P> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: scratch was made for this instruction set and problem by `Scratch::new`.
        unsafe {
            // Register tiles: sums, the vectors of the lanes operand and one broadcast fill the registers.
            match (S::ISA, self.item.rows.len() <= S::LANES) {
                (Isa::Avx512 | Isa::Avx512Bf16, false) => self.tiles::<S, 12, 2>(s),
                (Isa::Avx512 | Isa::Avx512Bf16, true) => self.tiles::<S, 12, 1>(s),
                (Isa::Neon, _) => self.tiles::<S, 8, 3>(s),
                (Isa::Avx2, _) => self.tiles::<S, 6, 2>(s),
                (Isa::Portable, _) => self.tiles::<S, 4, 1>(s),
            }
        }
    }
}

/// The rows of one panel.
struct Panel {
    index: usize,
    rows: Range<usize>,
    /// Keys that some row sees.
    seen: Range<usize>,
    /// Keys that every row sees.
    common: Range<usize>,
}

impl<P: Products> Block<'_, P> {
    /// # Safety
    /// The scratch must have been made for this instruction set and problem.
    #[inline(always)]
    unsafe fn tiles<S: Simd, const ROWS: usize, const VECTORS: usize>(mut self, s: S) {
        let lanes = VECTORS * S::LANES;
        debug_assert!(lanes <= panel_rows(S::ISA));
        let panels = self.panels(lanes);
        // SAFETY: the caller's contract; every pointer below stays in the buffers that `Scratch::new` sized.
        unsafe {
            for panel in &panels {
                self.load_queries::<S>(s, panel, lanes);
            }
            let keys = self.item.keys.clone();
            for start in keys.clone().step_by(KEYS) {
                let tile = start..keys.end.min(start + KEYS);
                if panels.iter().all(|panel| intersect(&panel.seen, &tile).is_empty()) {
                    continue;
                }
                self.load_keys::<S>(s, &tile);
                for panel in &panels {
                    self.visit::<S, ROWS, VECTORS>(s, panel, &tile);
                }
            }
            for panel in &panels {
                self.store_outputs::<S>(s, panel, lanes);
            }
        }
    }

    fn panels(&self, lanes: usize) -> Vec<Panel> {
        let (item, problem) = (self.item, self.operands.problem);
        let queries = problem.queries.range(item.sequence).len();
        let keys = problem.keys.len(item.sequence);
        let group = problem.group();
        let starts = item.rows.clone().step_by(lanes).enumerate();
        let panel = |(index, start): (usize, usize)| {
            let rows = start..item.rows.end.min(start + lanes);
            let (first, last) = (rows.start / group, (rows.end - 1) / group);
            let seen = problem.mask.visible_to_any(queries, keys, first..last + 1);
            // Both limits increase with the query, and only the first queries can have no visible keys.
            let (low, high) = (
                problem.mask.visible(queries, keys, last),
                problem.mask.visible(queries, keys, first),
            );
            let common = if high.is_empty() { 0..0 } else { low.start..high.end.max(low.start) };
            Panel { index, rows, seen, common }
        };
        starts.map(panel).collect()
    }

    fn words(&self) -> usize {
        self.operands.problem.head_dim.div_ceil(P::PER_WORD)
    }

    /// Transposes a panel's queries into lanes and clears its outputs.
    #[inline(always)]
    unsafe fn load_queries<S: Simd>(&mut self, s: S, panel: &Panel, lanes: usize) {
        let (operands, item, words) = (self.operands, self.item, self.words());
        let problem = operands.problem;
        let stride = words.next_multiple_of(PAD);
        let value_rows = output_rows(problem.value_dim);
        let scratch = &mut *self.scratch;
        // SAFETY: `rows` holds `lanes` rows of `stride` words, a multiple of every transpose block.
        unsafe {
            let rows = scratch.rows.ptr();
            rows.write_bytes(0, lanes * stride);
            for (lane, row) in panel.rows.clone().enumerate() {
                let from = operands.q_row(item, item.kv_heads.start, row).as_ptr();
                P::stage(s, from, problem.head_dim, rows.add(lane * stride));
            }
            let q = scratch.q.ptr().add(panel.index * stride * lanes);
            for lane in (0..lanes).step_by(S::TRANSPOSE) {
                for word in (0..stride).step_by(S::TRANSPOSE) {
                    s.transpose(
                        rows.add(lane * stride + word),
                        stride,
                        q.add(word * lanes + lane),
                        lanes,
                    );
                }
            }
            let o = scratch.o.ptr().add(panel.index * value_rows * lanes);
            o.write_bytes(0, value_rows * lanes);
            let running = running(&mut scratch.running, panel, lanes);
            for lane in (0..lanes).step_by(S::LANES) {
                s.store(running.max.add(lane), s.splat(f32::NEG_INFINITY));
                s.store(running.sum.add(lane), s.splat(0.0));
            }
        }
    }

    /// Copies one tile of keys and values, widened or paired.
    #[inline(always)]
    unsafe fn load_keys<S: Simd>(&mut self, s: S, tile: &Range<usize>) {
        let (operands, item) = (self.operands, self.item);
        let (dim, value_dim) = (operands.problem.head_dim, operands.problem.value_dim);
        let per_chunk = CHUNK * P::PER_WORD;
        // SAFETY: the tile has at most KEYS keys; the buffers hold KEYS of them.
        unsafe {
            let keys = self.scratch.keys.ptr();
            let values = self.scratch.values.ptr();
            let mut waiting = [std::ptr::null(); 2];
            let mut staged = 0;
            for (j, row) in
                operands.problem.keys.runs(item.sequence, tile.clone()).flatten().enumerate()
            {
                let k = operands.k_row(row, item.kv_heads.start).as_ptr();
                for (chunk, at) in (0..dim).step_by(per_chunk).enumerate() {
                    let count = per_chunk.min(dim - at);
                    P::stage(s, k.add(at), count, keys.add((chunk * KEYS + j) * CHUNK));
                }
                waiting[j % P::PER_WORD] = operands.v_row(row, item.kv_heads.start).as_ptr();
                let missing = P::PER_WORD - 1 - j % P::PER_WORD;
                if missing == 0 || j + 1 == tile.len() {
                    let rows = &waiting[..P::PER_WORD - missing];
                    P::stage_values(s, rows, value_dim, values.add(staged * value_dim));
                    staged += 1;
                }
            }
        }
    }

    /// Computes the scores and outputs of one panel for the key tile in scratch.
    #[inline(always)]
    unsafe fn visit<S: Simd, const ROWS: usize, const VECTORS: usize>(
        &mut self,
        s: S,
        panel: &Panel,
        tile: &Range<usize>,
    ) {
        let lanes = VECTORS * S::LANES;
        let words = self.words();
        let value_dim = self.operands.problem.value_dim;
        let mut wanted = intersect(&panel.seen, tile);
        if wanted.is_empty() {
            return;
        }
        // Words of values begin at whole multiples from the tile's start; a key added here is masked below.
        wanted.start -= (wanted.start - tile.start) % P::PER_WORD;
        let first = wanted.start - tile.start;
        let count = wanted.len();
        let masked = intersect(&panel.common, &wanted) != wanted;
        // SAFETY: rows past `count` are padding of the buffers, see PAD.
        unsafe {
            let scratch = &mut *self.scratch;
            let q = scratch.q.ptr().add(panel.index * words.next_multiple_of(PAD) * lanes);
            let keys = scratch.keys.ptr().add(first * CHUNK);
            let scores = scratch.scores.ptr();
            let mut i = 0;
            while i < count {
                let (a, out) = (keys.add(i * CHUNK), scores.add(i * lanes));
                i += if count - i >= ROWS {
                    P::scores::<S, ROWS, VECTORS>(s, a, KEYS * CHUNK, words, q, out);
                    ROWS
                } else if ROWS > 8 && count - i > 4 {
                    P::scores::<S, 8, VECTORS>(s, a, KEYS * CHUNK, words, q, out);
                    8
                } else {
                    P::scores::<S, 4, VECTORS>(s, a, KEYS * CHUNK, words, q, out);
                    4
                };
            }
            self.operands.logits.transform(s, scores, count * lanes);
            if masked {
                self.mask(panel, &wanted, scores, lanes);
            }
            let running = running(&mut self.scratch.running, panel, lanes);
            softmax::panel::<S, VECTORS>(s, self.operands.logits, scores, count, running);
            P::weights(s, scores, count, lanes);

            let scratch = &mut *self.scratch;
            let o = scratch.o.ptr().add(panel.index * output_rows(value_dim) * lanes);
            let values = scratch.values.ptr().add(first / P::PER_WORD * value_dim);
            let depth = count.div_ceil(P::PER_WORD);
            let rescale = running.rescale;
            let mut i = 0;
            while i < value_dim {
                let (a, out) = (values.add(i), o.add(i * lanes));
                i += if value_dim - i >= ROWS {
                    P::outputs::<S, ROWS, VECTORS>(s, a, value_dim, depth, scores, rescale, out);
                    ROWS
                } else if ROWS > 8 && value_dim - i > 4 {
                    P::outputs::<S, 8, VECTORS>(s, a, value_dim, depth, scores, rescale, out);
                    8
                } else {
                    P::outputs::<S, 4, VECTORS>(s, a, value_dim, depth, scores, rescale, out);
                    4
                };
            }
        }
    }

    /// Sets scores of keys that a lane does not see to -inf. Needed only for tiles at an edge of the mask.
    unsafe fn mask(&self, panel: &Panel, wanted: &Range<usize>, scores: *mut f32, lanes: usize) {
        let problem = self.operands.problem;
        let queries = problem.queries.range(self.item.sequence).len();
        let keys = problem.keys.len(self.item.sequence);
        for (lane, row) in panel.rows.clone().enumerate() {
            let seen = problem.mask.visible(queries, keys, row / problem.group());
            let seen = intersect(&seen, wanted);
            for j in (wanted.start..seen.start).chain(seen.end..wanted.end) {
                // SAFETY: one of the panel's scores of this tile.
                unsafe { *scores.add((j - wanted.start) * lanes + lane) = f32::NEG_INFINITY };
            }
        }
    }

    /// Transposes a panel's outputs back to rows and writes them to the output.
    #[inline(always)]
    unsafe fn store_outputs<S: Simd>(&mut self, s: S, panel: &Panel, lanes: usize) {
        let (operands, item) = (self.operands, self.item);
        let value_dim = operands.problem.value_dim;
        let stride = output_rows(value_dim);
        let scratch = &mut *self.scratch;
        // SAFETY: as in `load_queries`.
        unsafe {
            let rows = scratch.rows.ptr();
            let o = scratch.o.ptr().add(panel.index * stride * lanes);
            for lane in (0..lanes).step_by(S::TRANSPOSE) {
                for at in (0..stride).step_by(S::TRANSPOSE) {
                    s.transpose(
                        o.add(at * lanes + lane),
                        lanes,
                        rows.add(lane * stride + at),
                        stride,
                    );
                }
            }
            let running = running(&mut scratch.running, panel, lanes);
            for (lane, row) in panel.rows.clone().enumerate() {
                let values = std::slice::from_raw_parts_mut(rows.add(lane * stride), value_dim);
                let (max, sum) = (*running.max.add(lane), *running.sum.add(lane));
                operands.output.finish(item, (item.kv_heads.start, row), values, (max, sum));
            }
        }
    }
}

/// The running values of a panel.
fn running(buffer: &mut Buffer, panel: &Panel, lanes: usize) -> Running {
    debug_assert!((panel.index + 1) * 3 * lanes <= buffer.len());
    let max = buffer.ptr().wrapping_add(panel.index * 3 * lanes);
    Running { max, sum: max.wrapping_add(lanes), rescale: max.wrapping_add(2 * lanes) }
}

/// The keys in both, as an empty range inside `b` when there are none.
fn intersect(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    let start = a.start.clamp(b.start, b.end);
    start..a.end.clamp(start, b.end)
}
