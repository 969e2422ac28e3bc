//! Swapping sequences out to host memory and back in.

use super::Memory;
use super::pass::device_error;
use crate::pages::{By, Pages};
use device::Device;
use device::cuda::{Buffer, Cuda, DeviceError, HostCopy, PendingRestore, Stream, Swap};
use ops::{OpError, Tensor};
use std::sync::Arc;

/// Host memory for sequences.
#[derive(Default)]
pub(super) struct SwapSpace {
    swap: Option<Swap>,
    /// Slots that are being swapped in, and the bytes. The stream waits for a slot's copy only when the slot is used.
    arriving: Vec<(usize, u64, PendingRestore)>,
}

impl Memory {
    /// Every pool and whether its rows belong to slots or to blocks.
    fn pools(&self) -> impl Iterator<Item = (By, &Tensor)> {
        let states = self.states.iter().map(|states| (By::Slot, states.pool()));
        let caches =
            self.caches.iter().flat_map(|cache| [&cache.keys].into_iter().chain(&cache.values));
        states.chain(caches.map(|pool| (By::Block, pool)))
    }

    /// Bytes per row of each pool.
    pub(super) fn rows(&self) -> impl Iterator<Item = (By, usize)> {
        let bytes = |pool: &Tensor| pool.len() / pool.shape()[0] * pool.dtype().bytes();
        self.pools().map(move |(by, pool)| (by, bytes(pool)))
    }

    /// Copies a block's keys and values to another block.
    pub(super) fn copy_block(
        &self,
        [from, to]: [usize; 2],
        stream: &Stream,
    ) -> Result<(), OpError> {
        let mut of_blocks = self.pools().filter(|(by, _)| *by == By::Block);
        of_blocks
            .try_for_each(|(_, pool)| pool.rows(to, 1)?.copy_from(&pool.rows(from, 1)?, stream))
    }

    /// The buffers of a sequence.
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
    device_error(DeviceError::Refused { what: "no memory of the host is reserved".to_owned() })
}

impl SwapSpace {
    pub(super) fn reserve(&mut self, device: &Device, bytes: u64) -> Result<(), OpError> {
        let cuda = Cuda::of(device).filter(|_| bytes > 0);
        self.swap = cuda.map(|cuda| cuda.swap(bytes)).transpose().map_err(device_error)?;
        Ok(())
    }

    /// Copies a sequence to the host; `None` if there is no room.
    pub(super) fn save(&mut self, parts: &[Arc<Buffer>]) -> Result<Option<HostCopy>, OpError> {
        let swap = self.swap.as_mut().ok_or_else(absent)?;
        swap.save(parts).map_err(device_error)
    }

    /// Whether this many bytes can be saved without making the stream or the host wait.
    pub(super) fn is_ready_for(&self, bytes: u64) -> bool {
        // If the device fails here, the next step fails too and reports it.
        self.swap.as_ref().is_some_and(|swap| swap.is_ready_for(bytes).unwrap_or(false))
    }

    /// Pins more host memory; returns whether there may be more to pin.
    pub(super) fn pin_more(&self) -> bool {
        self.swap.as_ref().is_some_and(Swap::pin_more)
    }

    /// Whether a slot's data has arrived.
    pub(super) fn has_arrived(&mut self, slot: usize) -> bool {
        let Some(swap) = &mut self.swap else { return true };
        let mut arriving = self.arriving.iter().filter(|(to, ..)| *to == slot);
        arriving.all(|(_, bytes, arrival)| {
            // If the device fails here, the next step fails too and reports it.
            let there = arrival.is_done().unwrap_or(true);
            if there {
                let _ = swap.time(arrival, *bytes);
            }
            there
        })
    }

    /// Measured bytes per second of copies to the device.
    pub(super) fn bytes_per_second(&self) -> Option<f64> {
        self.swap.as_ref()?.bytes_per_second()
    }

    /// Copies a saved sequence to a slot.
    pub(super) fn restore(
        &mut self,
        copy: &HostCopy,
        slot: usize,
        parts: &[Arc<Buffer>],
    ) -> Result<(), OpError> {
        let swap = self.swap.as_mut().ok_or_else(absent)?;
        let bytes = parts.iter().map(|part| part.bytes() as u64).sum();
        self.arriving.push((slot, bytes, swap.restore(copy, parts).map_err(device_error)?));
        Ok(())
    }

    /// Makes the stream wait for the copies to some slots.
    pub(super) fn wait_for_copies(&mut self, slots: &[usize]) -> Result<(), OpError> {
        let mut landing = self.arriving.extract_if(.., |(slot, ..)| slots.contains(slot));
        landing.try_for_each(|(_, _, arrival)| arrival.join().map_err(device_error))
    }
}
