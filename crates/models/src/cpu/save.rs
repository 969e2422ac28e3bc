//! Saves and restores a sequence's rows of the pools.

use super::Memory;
use crate::pages::By;
use device::HostBuffer;
use half::bf16;
use ops::{DType, Element, Tensor};
use std::ops::Range;

impl Memory {
    /// Every pool and whether its rows belong to slots or to blocks.
    pub(super) fn pools(&self) -> impl Iterator<Item = (By, &Tensor)> {
        let states = self.states.iter().map(|states| (By::Slot, &states.pool));
        let caches =
            self.caches.iter().flat_map(|cache| [&cache.keys].into_iter().chain(&cache.values));
        states.chain(caches.map(|pool| (By::Block, pool)))
    }

    /// [`Memory::pools`], mutable.
    pub(super) fn pools_mut(&mut self) -> impl Iterator<Item = (By, &mut Tensor)> {
        let states = self.states.iter_mut().map(|states| (By::Slot, &mut states.pool));
        let caches = self.caches.iter_mut();
        let caches =
            caches.flat_map(|cache| [&mut cache.keys].into_iter().chain(&mut cache.values));
        states.chain(caches.map(|pool| (By::Block, pool)))
    }
}

/// Bytes of a row.
pub(super) fn row_bytes(pool: &Tensor) -> usize {
    pool.shape()[1..].iter().product::<usize>() * pool.dtype().bytes()
}

/// Copies rows of a pool into one tensor.
pub(super) fn take(pool: &Tensor, rows: &[Range<usize>]) -> Tensor {
    fn of<E: Element>(pool: &Tensor, rows: &[Range<usize>]) -> Tensor {
        let (shape, all) = (pool.shape(), pool.view::<E>().unwrap_or_default());
        let width: usize = shape[1..].iter().product();
        let count = rows.iter().map(Range::len).sum();
        let parts = rows.iter().map(|rows| &all[rows.start * width..rows.end * width]);
        E::tensor(&[&[count], &shape[1..]].concat(), HostBuffer::concatenated(count * width, parts))
    }
    match pool.dtype() {
        DType::Bf16 => of::<bf16>(pool, rows),
        _ => of::<f32>(pool, rows),
    }
}

/// Copies saved rows back into a pool.
pub(super) fn put(pool: &mut Tensor, rows: &[Range<usize>], taken: &Tensor) {
    fn of<E: Element>(pool: &mut Tensor, rows: &[Range<usize>], taken: &Tensor) {
        let width: usize = pool.shape()[1..].iter().product();
        let mut taken = taken.view::<E>().unwrap_or_default();
        let Some(all) = pool.view_mut::<E>() else { return };
        for rows in rows {
            let (next, rest) = taken.split_at(rows.len() * width);
            all[rows.start * width..rows.end * width].copy_from_slice(next);
            taken = rest;
        }
    }
    match pool.dtype() {
        DType::Bf16 => of::<bf16>(pool, rows, taken),
        _ => of::<f32>(pool, rows, taken),
    }
}

/// Copies a row of a pool to another row.
pub(super) fn copy_row(pool: &mut Tensor, from: usize, to: usize) {
    fn of<E: Element>(pool: &mut Tensor, from: usize, to: usize) {
        let width: usize = pool.shape()[1..].iter().product();
        if let Some(all) = pool.view_mut::<E>() {
            all.copy_within(from * width..(from + 1) * width, to * width);
        }
    }
    match pool.dtype() {
        DType::Bf16 => of::<bf16>(pool, from, to),
        _ => of::<f32>(pool, from, to),
    }
}
