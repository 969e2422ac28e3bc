//! Blocks with few query rows: keys and values are read once, directly from memory, with channels in lanes.
#![allow(unsafe_code)] // Tiles live in scratch that products reach through pointers.

#[cfg(target_arch = "x86_64")]
mod pairs;
mod products;
mod reduce;
mod rows;
mod widened;

pub(super) use products::Products;

use super::buffer::Buffer;
use super::plan::Item;
use super::{Operands, softmax};
use crate::simd::{Simd, SimdKernel};
use device::Isa;
use products::KEYS;
use rows::Tile;
use std::ops::Range;

/// Rows are padded to whole vectors of any scheme: 32 bfloat16 values are 16 words.
const PAD: usize = 16;

/// Maximum number of stacked query rows of a block. With more rows a tile of sums exceeds the registers, and panels are as fast.
pub(super) const MAX_ROWS: usize = 8;

/// One thread's scratch.
pub(super) struct Scratch {
    /// Queries widened, [heads][rows][D padded].
    q: Buffer,
    /// [rows][KEYS].
    scores: Buffer,
    /// [heads][rows][Dv padded].
    o: Buffer,
    /// Largest base-2 logit and sum of weights, [heads][rows].
    running: Vec<(f32, f32)>,
    /// Rows widened where vectors cannot load them: [KEYS][max(D, Dv)].
    wide: Buffer,
}

impl Scratch {
    pub(super) fn new(heads: usize, head_dim: usize, value_dim: usize) -> Self {
        let rows = heads * MAX_ROWS;
        Self {
            q: Buffer::new(rows * head_dim.next_multiple_of(PAD)),
            scores: Buffer::new(MAX_ROWS * KEYS),
            o: Buffer::new(rows * value_dim.next_multiple_of(PAD)),
            running: vec![(0.0, 0.0); rows],
            wide: Buffer::new(KEYS * head_dim.max(value_dim)),
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
        // SAFETY: scratch was made for this problem by `Scratch::new`.
        unsafe {
            // Register tile: query rows x keys (scores) or channel vectors (outputs); the sums fill the registers.
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

impl<P: Products> Block<'_, P> {
    /// # Safety
    /// The scratch must have been made for this problem; the item has at most `ROWS` rows.
    #[inline(always)]
    unsafe fn tiles<S: Simd, const ROWS: usize, const SIDE: usize>(self, s: S) {
        let (operands, item, scratch) = (self.operands, self.item, self.scratch);
        let (dim, value_dim) = (operands.problem.head_dim, operands.problem.value_dim);
        let kv_heads = operands.problem.kv_heads;
        let (q_stride, o_stride) = (dim.next_multiple_of(PAD), value_dim.next_multiple_of(PAD));
        scratch.running.fill((f32::NEG_INFINITY, 0.0));
        // SAFETY: the caller's contract; every pointer stays in its buffer or its tensor's row.
        unsafe {
            let (q, o) = (scratch.q.ptr(), scratch.o.ptr());
            let (scores, wide) = (scratch.scores.ptr(), scratch.wide.ptr());
            q.write_bytes(0, item.kv_heads.len() * ROWS * q_stride);
            o.write_bytes(0, item.kv_heads.len() * ROWS * o_stride);
            for (head, kv_head) in item.kv_heads.clone().enumerate() {
                for (r, row) in item.rows.clone().enumerate() {
                    let from = operands.q_row(item, kv_head, row).as_ptr();
                    P::stage(s, from, dim, q.add((head * ROWS + r) * q_stride));
                }
            }
            let end = item.keys.end;
            let mut next =
                Tile::new(operands, item, item.keys.start..end.min(item.keys.start + KEYS));
            for start in item.keys.clone().step_by(KEYS) {
                let keys = start..end.min(start + KEYS);
                let tile = next;
                next = Tile::new(operands, item, keys.end..end.min(keys.end + KEYS));
                for (head, kv_head) in item.kv_heads.clone().enumerate() {
                    let of_k = (kv_heads, kv_head, dim);
                    let of_v = (kv_heads, kv_head, operands.problem.value_stride());
                    let (k, next_k) = (tile.of(operands.k, of_k), next.of(operands.k, of_k));
                    let (v, next_v) = (tile.of(operands.v, of_v), next.of(operands.v, of_v));
                    let q = (q.add(head * ROWS * q_stride).cast_const(), q_stride);
                    P::scores::<S, ROWS, SIDE>(s, [&k, &next_k], dim, q, wide, scores);
                    operands.logits.transform(s, scores, ROWS * KEYS);
                    mask(operands, item, &keys, scores);
                    let mut rescale = [0.0; ROWS];
                    for (r, rescale) in rescale.iter_mut().enumerate() {
                        let scores = scores.add(r * KEYS);
                        for j in keys.len()..KEYS {
                            *scores.add(j) = f32::NEG_INFINITY;
                        }
                        let running = &mut scratch.running[head * ROWS + r];
                        (running.0, running.1, *rescale) =
                            softmax::row(s, operands.logits, scores, KEYS, *running);
                    }
                    let o = (o.add(head * ROWS * o_stride), o_stride);
                    let values = [&v, &next_v];
                    P::outputs::<S, ROWS, SIDE>(s, values, value_dim, scores, &rescale, wide, o);
                }
            }
            for (head, kv_head) in item.kv_heads.clone().enumerate() {
                for (r, row) in item.rows.clone().enumerate() {
                    let at = o.add((head * ROWS + r) * o_stride);
                    let values = std::slice::from_raw_parts_mut(at, value_dim);
                    let running = scratch.running[head * ROWS + r];
                    operands.output.finish(item, (kv_head, row), values, running);
                }
            }
        }
    }
}

/// Sets scores of keys that a row does not see to -inf.
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
