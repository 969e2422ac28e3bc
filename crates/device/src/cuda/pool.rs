//! The caching allocator: blocks that buffers give back are kept for the next buffer of their size, because asking
//! the driver synchronises the whole GPU.
#![allow(unsafe_code)] // Calls of the driver.

use super::driver::{DevicePointer, Driver, OUT_OF_MEMORY};
use std::collections::BTreeMap;

/// Bytes of GPU memory that this process has through firstlight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Held by live buffers.
    pub live: u64,
    /// Most that live buffers held at once.
    pub high_water: u64,
    /// Kept for later buffers.
    pub kept: u64,
}

/// Blocks kept for reuse, by the stream whose order protects their reuse and by size.
#[derive(Debug, Default)]
pub(super) struct Pool {
    kept: BTreeMap<(u64, usize), Vec<DevicePointer>>,
    usage: MemoryUse,
}

/// Small blocks are multiples of this, which is also the alignment that every block has.
const SMALL_STEP: usize = 512;
/// Blocks from this size on are multiples of it: the driver hands memory out in pages of 2 MiB.
const LARGE_STEP: usize = 2 << 20;

/// The size of the block that serves a buffer.
pub(super) fn block_bytes(bytes: usize) -> usize {
    let step = if bytes < LARGE_STEP { SMALL_STEP } else { LARGE_STEP };
    bytes.max(1).next_multiple_of(step)
}

impl Pool {
    /// A kept block of exactly this size that the stream gave back.
    pub(super) fn take(&mut self, stream: u64, block: usize) -> Option<DevicePointer> {
        let pointer = self.kept.get_mut(&(stream, block))?.pop()?;
        self.usage.kept -= block as u64;
        self.count(block);
        Some(pointer)
    }

    /// A new block from the driver; the driver's code when it has none.
    pub(super) fn allocate(&mut self, driver: &Driver, block: usize) -> Result<DevicePointer, i32> {
        let mut pointer = 0;
        // SAFETY: the pointer is to a local that outlives the call.
        let mut code = unsafe { (driver.allocate)(&raw mut pointer, block) };
        if code == OUT_OF_MEMORY && self.usage.kept > 0 {
            self.release_all(driver);
            // SAFETY: as above.
            code = unsafe { (driver.allocate)(&raw mut pointer, block) };
        }
        if code != 0 {
            return Err(code);
        }
        self.count(block);
        Ok(pointer)
    }

    fn count(&mut self, block: usize) {
        self.usage.live += block as u64;
        self.usage.high_water = self.usage.high_water.max(self.usage.live);
    }

    /// Keeps a block that a buffer gave back.
    pub(super) fn give_back(&mut self, stream: u64, block: usize, pointer: DevicePointer) {
        self.usage.live -= block as u64;
        self.usage.kept += block as u64;
        self.kept.entry((stream, block)).or_default().push(pointer);
    }

    /// Returns every kept block to the driver.
    pub(super) fn release_all(&mut self, driver: &Driver) {
        for pointer in std::mem::take(&mut self.kept).into_values().flatten() {
            // SAFETY: the block came from the driver and no buffer has it; freeing waits for work that still uses it.
            unsafe { (driver.free)(pointer) };
        }
        self.usage.kept = 0;
    }

    pub(super) fn usage(&self) -> MemoryUse {
        self.usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_rounded_up_to_their_step() {
        for (bytes, block) in [
            (0, 512),
            (1, 512),
            (512, 512),
            (513, 1024),
            ((2 << 20) - 1, 2 << 20),
            (2 << 20, 2 << 20),
            ((2 << 20) + 1, 4 << 20),
        ] {
            assert_eq!(block_bytes(bytes), block, "{bytes}");
        }
    }

    #[test]
    fn a_block_is_reused_only_by_its_stream_and_size() {
        let mut pool = Pool::default();
        pool.count(1024);
        pool.give_back(1, 1024, 77);
        assert_eq!(pool.take(2, 1024), None);
        assert_eq!(pool.take(1, 512), None);
        assert_eq!(pool.usage(), MemoryUse { live: 0, high_water: 1024, kept: 1024 });
        assert_eq!(pool.take(1, 1024), Some(77));
        assert_eq!(pool.take(1, 1024), None);
        assert_eq!(pool.usage(), MemoryUse { live: 1024, high_water: 1024, kept: 0 });
    }
}
