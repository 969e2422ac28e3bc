#![allow(unsafe_code)] // Prefetches take pointers.

use super::super::Operands;
use super::super::plan::Item;
use super::KEYS;
use std::ops::Range;

/// Pointers to the rows of a tile's keys or values.
pub(in super::super) struct Rows<T> {
    pub(super) at: [*const T; KEYS],
    pub(super) count: usize,
}

/// The token rows of a tile.
pub(super) struct Tile {
    rows: [usize; KEYS],
    count: usize,
}

impl Tile {
    pub(super) fn new<E>(operands: &Operands<'_, E>, item: &Item, keys: Range<usize>) -> Self {
        let mut tile = Self { rows: [0; KEYS], count: keys.len() };
        let found = operands.problem.keys.runs(item.sequence, keys).flatten();
        for (to, row) in tile.rows.iter_mut().zip(found) {
            *to = row;
        }
        tile
    }

    /// Pointers to one head's vectors in a tensor [rows, Hkv, dim].
    #[inline(always)]
    pub(super) fn of<E>(
        &self,
        tensor: &[E],
        (kv_heads, kv_head, dim): (usize, usize, usize),
    ) -> Rows<E> {
        let mut rows = Rows { at: [std::ptr::null(); KEYS], count: self.count };
        for (at, row) in rows.at.iter_mut().zip(&self.rows[..self.count]) {
            *at = tensor[(row * kv_heads + kv_head) * dim..][..dim].as_ptr();
        }
        rows
    }
}

impl<T> Rows<T> {
    /// Prefetches row `j` of `dim` values, if there is one: the stride between rows of a head is too large for the hardware
    /// prefetcher, and prefetching between computations hides the latency.
    #[inline(always)]
    pub(super) fn prefetch(&self, j: usize, dim: usize) {
        #[cfg(target_arch = "x86_64")]
        if j < self.count {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            for at in (0..dim).step_by(64 / size_of::<T>()) {
                // SAFETY: a prefetch reads nothing and cannot fault.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(self.at[j].wrapping_add(at).cast()) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (self, j, dim);
    }
}
