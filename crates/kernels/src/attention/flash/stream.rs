//! Blocks with few query rows: keys and values stream past once, straight from memory, with channels in lanes.
#![allow(unsafe_code)] // Rows are read through pointers, ahead of use.

use super::Operands;
use super::buffer::Buffer;
use super::plan::{Item, STREAM_ROWS};
use super::softmax;
use super::storage::Storage;
use crate::Element;
use crate::cpu::simd::{Simd, SimdKernel};
use device::Isa;
use std::ops::Range;

/// Keys of a tile.
const KEYS: usize = 64;
/// Rows are padded to whole vectors of any instruction set.
const PAD: usize = 16;

/// One thread's scratch.
pub(super) struct Scratch {
    /// Queries widened, [STREAM_ROWS][D padded].
    q: Buffer,
    /// [STREAM_ROWS][KEYS].
    scores: Buffer,
    /// [STREAM_ROWS][Dv padded].
    o: Buffer,
    /// Rows widened where vectors cannot load them: [KEYS][max(D, Dv)].
    wide: Buffer,
}

impl Scratch {
    pub(super) fn new(head_dim: usize, value_dim: usize) -> Self {
        Self {
            q: Buffer::new(STREAM_ROWS * head_dim.next_multiple_of(PAD)),
            scores: Buffer::new(STREAM_ROWS * KEYS),
            o: Buffer::new(STREAM_ROWS * value_dim.next_multiple_of(PAD)),
            wide: Buffer::new(KEYS * head_dim.max(value_dim)),
        }
    }
}

/// One block.
pub(super) struct Block<'a, E> {
    pub(super) operands: &'a Operands<'a, E>,
    pub(super) item: &'a Item,
    pub(super) scratch: &'a mut Scratch,
}

impl<E: Storage> SimdKernel for Block<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: scratch was made for this problem by `Scratch::new`.
        unsafe {
            // Rows of queries, and keys or vectors of channels beside them: as many sums as the registers hold.
            match (S::ISA, self.item.rows.len()) {
                (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Neon, 1) => self.tiles::<S, 1, 8>(s),
                (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Neon, 2) => self.tiles::<S, 2, 8>(s),
                (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Neon, 3..=4) => self.tiles::<S, 4, 4>(s),
                (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Neon, _) => self.tiles::<S, 8, 2>(s),
                (Isa::Avx2 | Isa::Portable, 1) => self.tiles::<S, 1, 8>(s),
                (Isa::Avx2 | Isa::Portable, 2) => self.tiles::<S, 2, 4>(s),
                (Isa::Avx2 | Isa::Portable, 3..=4) => self.tiles::<S, 4, 2>(s),
                (Isa::Avx2 | Isa::Portable, _) => self.tiles::<S, 8, 1>(s),
            }
        }
    }
}

/// Where the rows of a tile's keys or values begin.
struct Rows<T> {
    at: [*const T; KEYS],
    count: usize,
}

impl<E: Storage> Block<'_, E> {
    /// # Safety
    /// The scratch must have been made for this problem; the item has at most `ROWS` rows.
    #[inline(always)]
    unsafe fn tiles<S: Simd, const ROWS: usize, const SIDE: usize>(self, s: S) {
        let (operands, item, scratch) = (self.operands, self.item, self.scratch);
        let (dim, value_dim) = (operands.problem.head_dim, operands.problem.value_dim);
        let (q_stride, o_stride) = (dim.next_multiple_of(PAD), value_dim.next_multiple_of(PAD));
        let mut running = [(f32::NEG_INFINITY, 0.0); ROWS];
        let mut rescale = [0.0; ROWS];
        // SAFETY: the caller's contract; every pointer stays in its buffer or its tensor's row.
        unsafe {
            let (q, o) = (scratch.q.ptr(), scratch.o.ptr());
            let (scores, wide) = (scratch.scores.ptr(), scratch.wide.ptr());
            q.write_bytes(0, ROWS * q_stride);
            o.write_bytes(0, ROWS * o_stride);
            for (r, row) in item.rows.clone().enumerate() {
                E::widen_row(s, operands.q_row(item, row).as_ptr(), q.add(r * q_stride), dim);
            }
            for start in item.keys.clone().step_by(KEYS) {
                let tile = start..item.keys.end.min(start + KEYS);
                let (k, v) = rows(operands, item, &tile);
                let next = tile.end..item.keys.end.min(tile.end + KEYS);
                prefetch(operands, item, next);
                if E::LOADS {
                    score::<S, E, ROWS, SIDE>(s, &k, dim, q, q_stride, scores);
                } else {
                    let k = widen(s, &k, dim, wide);
                    score::<S, f32, ROWS, SIDE>(s, &k, dim, q, q_stride, scores);
                }
                operands.logits.transform(s, scores, ROWS * KEYS);
                mask(operands, item, &tile, scores);
                for r in 0..ROWS {
                    let scores = scores.add(r * KEYS);
                    for j in tile.len()..KEYS {
                        *scores.add(j) = f32::NEG_INFINITY;
                    }
                    let (max, sum, factor) =
                        softmax::row(s, operands.logits, scores, KEYS, running[r]);
                    running[r] = (max, sum);
                    rescale[r] = factor;
                }
                if E::LOADS {
                    weigh::<S, E, ROWS, SIDE>(s, &v, value_dim, scores, &rescale, o, o_stride);
                } else {
                    let v = widen(s, &v, value_dim, wide);
                    weigh::<S, f32, ROWS, SIDE>(s, &v, value_dim, scores, &rescale, o, o_stride);
                }
            }
            for (r, row) in item.rows.clone().enumerate() {
                let values = std::slice::from_raw_parts_mut(o.add(r * o_stride), value_dim);
                operands.output.finish(item, row, values, running[r].0, running[r].1);
            }
        }
    }
}

fn rows<E: Element>(
    operands: &Operands<'_, E>,
    item: &Item,
    tile: &Range<usize>,
) -> (Rows<E>, Rows<E>) {
    let mut k = Rows { at: [std::ptr::null(); KEYS], count: tile.len() };
    let mut v = Rows { at: [std::ptr::null(); KEYS], count: tile.len() };
    let found = operands.problem.keys.runs(item.sequence, tile.clone()).flatten();
    for (j, row) in found.enumerate() {
        k.at[j] = operands.k_row(row, item.kv_head).as_ptr();
        v.at[j] = operands.v_row(row, item.kv_head).as_ptr();
    }
    (k, v)
}

/// Asks for the rows of `tile` before they are needed: with several heads a head's rows lie too far apart for the
/// processor to guess the next one.
#[inline(always)]
fn prefetch<E: Element>(operands: &Operands<'_, E>, item: &Item, tile: Range<usize>) {
    #[cfg(target_arch = "x86_64")]
    for row in operands.problem.keys.runs(item.sequence, tile).flatten() {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        for row in [operands.k_row(row, item.kv_head), operands.v_row(row, item.kv_head)] {
            for line in row.chunks(64 / size_of::<E>()) {
                // SAFETY: a prefetch reads nothing and cannot fault.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (operands, item, tile);
}

/// # Safety
/// Every row must be readable for `dim` values, `wide` writable for KEYS rows.
#[inline(always)]
unsafe fn widen<S: Simd, E: Storage>(s: S, rows: &Rows<E>, dim: usize, wide: *mut f32) -> Rows<f32> {
    let mut widened = Rows { at: [std::ptr::null(); KEYS], count: rows.count };
    for j in 0..rows.count {
        let to = wide.wrapping_add(j * dim);
        // SAFETY: the caller's contract.
        unsafe { E::widen_row(s, rows.at[j], to, dim) };
        widened.at[j] = to;
    }
    widened
}

/// `scores[r][j] = q[r] . k[j]` for all rows and the tile's keys.
#[inline(always)]
unsafe fn score<S: Simd, E: Storage, const ROWS: usize, const SIDE: usize>(
    s: S,
    keys: &Rows<E>,
    dim: usize,
    q: *const f32,
    q_stride: usize,
    scores: *mut f32,
) {
    let whole = dim - dim % S::LANES;
    for first in (0..keys.count).step_by(SIDE) {
        let mut sums = [[s.splat(0.0); ROWS]; SIDE];
        // Past the last key the last one is read again and its score not stored.
        let mut at = [keys.at[first]; SIDE];
        for (i, at) in at.iter_mut().enumerate() {
            *at = keys.at[(first + i).min(keys.count - 1)];
        }
        // SAFETY: the caller's contract: keys have `dim` values, queries are padded with zeros to whole vectors.
        unsafe {
            for d in (0..whole).step_by(S::LANES) {
                for (sums, at) in sums.iter_mut().zip(at) {
                    let k = E::load(s, at.add(d));
                    for (r, sum) in sums.iter_mut().enumerate() {
                        *sum = s.fma(k, s.load(q.add(r * q_stride + d)), *sum);
                    }
                }
            }
            if whole < dim {
                for (sums, at) in sums.iter_mut().zip(at) {
                    let k = E::load_first(s, at.add(whole), dim - whole);
                    for (r, sum) in sums.iter_mut().enumerate() {
                        *sum = s.fma(k, s.load(q.add(r * q_stride + whole)), *sum);
                    }
                }
            }
            for (i, sums) in sums.iter().enumerate().take(keys.count - first) {
                for (r, sum) in sums.iter().enumerate() {
                    *scores.add(r * KEYS + first + i) = s.reduce_add(*sum);
                }
            }
        }
    }
}

/// Scores of keys that a row does not see become -inf.
unsafe fn mask<E>(operands: &Operands<'_, E>, item: &Item, tile: &Range<usize>, scores: *mut f32) {
    let problem = operands.problem;
    if problem.mask.is_full() {
        return;
    }
    let queries = problem.queries.range(item.sequence).len();
    let keys = problem.keys.len(item.sequence);
    for (r, row) in item.rows.clone().enumerate() {
        let seen = problem.mask.visible(queries, keys, row / problem.group());
        for j in tile.clone().filter(|j| !seen.contains(j)) {
            // SAFETY: one of this tile's scores.
            unsafe { *scores.add(r * KEYS + j - tile.start) = f32::NEG_INFINITY };
        }
    }
}

/// `o[r] = rescale[r] * o[r] + sum over j of weights[r][j] * v[j]`.
#[inline(always)]
unsafe fn weigh<S: Simd, E: Storage, const ROWS: usize, const SIDE: usize>(
    s: S,
    values: &Rows<E>,
    dim: usize,
    weights: *const f32,
    rescale: &[f32; ROWS],
    o: *mut f32,
    o_stride: usize,
) {
    let whole = dim - dim % S::LANES;
    let mut at = 0;
    // SAFETY: the caller's contract: values have `dim` channels, outputs are padded to whole vectors.
    unsafe {
        while at + SIDE * S::LANES <= whole {
            columns::<S, E, ROWS, SIDE>(s, values, at, S::LANES, weights, rescale, o.add(at), o_stride);
            at += SIDE * S::LANES;
        }
        while at < dim {
            let count = S::LANES.min(dim - at);
            columns::<S, E, ROWS, 1>(s, values, at, count, weights, rescale, o.add(at), o_stride);
            at += S::LANES;
        }
    }
}

/// [`weigh`] for `VECTORS` vectors of channels from `at` on, the last one of `count` lanes.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // One register tile's whole description, used in one place.
unsafe fn columns<S: Simd, E: Storage, const ROWS: usize, const VECTORS: usize>(
    s: S,
    values: &Rows<E>,
    at: usize,
    count: usize,
    weights: *const f32,
    rescale: &[f32; ROWS],
    o: *mut f32,
    o_stride: usize,
) {
    let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
    // SAFETY: the caller's contract.
    unsafe {
        for (r, sums) in sums.iter_mut().enumerate() {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = s.mul(s.load(o.add(r * o_stride + i * S::LANES)), s.splat(rescale[r]));
            }
        }
        for j in 0..values.count {
            let from = values.at[j].add(at);
            let mut v = [s.splat(0.0); VECTORS];
            if VECTORS == 1 && count < S::LANES {
                v[0] = E::load_first(s, from, count);
            } else {
                for (i, v) in v.iter_mut().enumerate() {
                    *v = E::load(s, from.add(i * S::LANES));
                }
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let weight = s.splat(*weights.add(r * KEYS + j));
                for (sum, v) in sums.iter_mut().zip(v) {
                    *sum = s.fma(weight, v, *sum);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (i, sum) in sums.iter().enumerate() {
                s.store(o.add(r * o_stride + i * S::LANES), *sum);
            }
        }
    }
}
