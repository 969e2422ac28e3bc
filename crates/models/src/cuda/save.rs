//! Sequences on the host, and on their way back.

use super::Memory;
use super::pass::device_error;
use crate::pages::{By, Pages};
use device::Device;
use device::cuda::{Arrival, Buffer, CudaError, OnHost, Stream, Swap};
use kernels::{OpError, Tensor};
use std::sync::Arc;

/// The host's memory for sequences.
#[derive(Default)]
pub(super) struct Saves {
    swap: Option<Swap>,
    /// Slots whose memory is on its way from the host, and its bytes. The stream waits for it once somebody wants the slot, not before.
    arriving: Vec<(usize, u64, Arrival)>,
}

impl Memory {
    /// Every pool, by whose its rows are.
    fn pools(&self) -> impl Iterator<Item = (By, &Tensor)> {
        let states = self.states.iter().map(|states| (By::Slot, states.pool()));
        let caches =
            self.caches.iter().flat_map(|cache| [&cache.keys].into_iter().chain(&cache.values));
        states.chain(caches.map(|pool| (By::Block, pool)))
    }

    /// Bytes of a row of each.
    pub(super) fn rows(&self) -> impl Iterator<Item = (By, usize)> {
        let bytes = |pool: &Tensor| pool.len() / pool.shape()[0] * pool.dtype().bytes();
        self.pools().map(move |(by, pool)| (by, bytes(pool)))
    }

    /// Lays a block's keys and values into another one too.
    pub(super) fn copy_block(
        &self,
        [from, to]: [usize; 2],
        stream: &Stream,
    ) -> Result<(), OpError> {
        let mut of_blocks = self.pools().filter(|(by, _)| *by == By::Block);
        of_blocks
            .try_for_each(|(_, pool)| pool.rows(to, 1)?.copy_from(&pool.rows(from, 1)?, stream))
    }

    /// The memory of a sequence.
    pub(super) fn parts(
        &self,
        pages: &Pages,
        sequence: usize,
    ) -> Result<Vec<Arc<Buffer>>, OpError> {
        let rows = self.pools().flat_map(|(by, pool)| {
            let rows = pages.rows_of(by, sequence).into_iter();
            rows.map(|rows| Ok(Arc::clone(pool.rows(rows.start, rows.len())?.on()?)))
        });
        rows.collect()
    }
}

fn absent() -> OpError {
    device_error(CudaError::Refused { what: "no memory of the host is reserved".to_owned() })
}

impl Saves {
    pub(super) fn reserve(&mut self, device: &Device, bytes: u64) -> Result<(), OpError> {
        let cuda = device.cuda().filter(|_| bytes > 0);
        self.swap = cuda.map(|cuda| cuda.swap(bytes)).transpose().map_err(device_error)?;
        Ok(())
    }

    /// Copies a sequence's memory; none where there is no room.
    pub(super) fn save(&mut self, parts: &[Arc<Buffer>]) -> Result<Option<OnHost>, OpError> {
        let swap = self.swap.as_mut().ok_or_else(absent)?;
        swap.save(parts).map_err(device_error)
    }

    /// Whether so many bytes can be saved without a wait of the stream or of the host.
    pub(super) fn is_ready_for(&self, bytes: u64) -> bool {
        // A device that fails here fails at the next step as well, which says so.
        self.swap.as_ref().is_some_and(|swap| swap.is_ready_for(bytes).unwrap_or(false))
    }

    /// Pins more of the host's memory; whether there may be more to pin.
    pub(super) fn pin_more(&self) -> bool {
        self.swap.as_ref().is_some_and(Swap::pin_more)
    }

    /// Whether what is on its way to a slot is there.
    pub(super) fn has_arrived(&mut self, slot: usize) -> bool {
        let Some(swap) = &mut self.swap else { return true };
        let mut arriving = self.arriving.iter().filter(|(to, ..)| *to == slot);
        arriving.all(|(_, bytes, arrival)| {
            // As above.
            let there = arrival.is_done().unwrap_or(true);
            if there {
                let _ = swap.time(arrival, *bytes);
            }
            there
        })
    }

    /// Bytes per second that come back.
    pub(super) fn bytes_per_second(&self) -> Option<f64> {
        self.swap.as_ref()?.bytes_per_second()
    }

    /// Brings a copy back to a slot's memory.
    pub(super) fn restore(
        &mut self,
        copy: &OnHost,
        slot: usize,
        parts: &[Arc<Buffer>],
    ) -> Result<(), OpError> {
        let swap = self.swap.as_mut().ok_or_else(absent)?;
        let bytes = parts.iter().map(|part| part.bytes() as u64).sum();
        self.arriving.push((slot, bytes, swap.restore(copy, parts).map_err(device_error)?));
        Ok(())
    }

    /// Lets the stream wait for what is on its way to some slots.
    pub(super) fn land(&mut self, slots: &[usize]) -> Result<(), OpError> {
        let mut landing = self.arriving.extract_if(.., |(slot, ..)| slots.contains(slot));
        landing.try_for_each(|(_, _, arrival)| arrival.join().map_err(device_error))
    }
}
