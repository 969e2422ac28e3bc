//! The caching allocator: freed blocks are kept for the next buffer of their size, because allocating from the driver
//! synchronises the whole GPU. A stream with arenas allocates its transient blocks from them.
#![allow(unsafe_code)] // Calls of the driver.

use super::arena::{Arenas, LARGE};
use super::driver::{DevicePointer, Driver, OUT_OF_MEMORY};
use std::collections::BTreeMap;

/// GPU memory of this process through firstlight, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// In live buffers.
    pub live: u64,
    /// Maximum in live buffers at once.
    pub high_water: u64,
    /// Cached for later buffers.
    pub kept: u64,
}

/// Blocks cached for reuse, by stream, whose order makes reuse safe, and by size.
#[derive(Debug, Default)]
pub(super) struct Pool {
    kept: BTreeMap<(u64, usize), Vec<DevicePointer>>,
    arenas: Arenas,
    usage: MemoryUse,
}

/// Small blocks are multiples of this, which is also the alignment of every block.
const SMALL_STEP: usize = 512;
/// Large blocks are multiples of this: the driver allocates pages of 2 MiB.
const LARGE_STEP: usize = LARGE;
/// Bytes by which the small and the large arenas of a stream grow.
const GROWTH: [usize; 2] = [16 << 20, 64 << 20];

/// The size of the block for a buffer.
pub(super) fn block_bytes(bytes: usize) -> usize {
    let step = if bytes < LARGE_STEP { SMALL_STEP } else { LARGE_STEP };
    bytes.max(1).next_multiple_of(step)
}

impl Pool {
    /// A block of an arena, or a cached one of exactly this size of the same stream.
    pub(super) fn take(
        &mut self,
        stream: u64,
        block: usize,
        transient: bool,
    ) -> Option<DevicePointer> {
        let pointer = match transient && self.arenas.serves(stream, block) {
            true => self.arenas.take(stream, block)?,
            false => self.kept.get_mut(&(stream, block))?.pop()?,
        };
        self.usage.kept -= block as u64;
        self.count(block);
        Some(pointer)
    }

    /// A block from new memory of the driver; the driver's error code if it has none.
    pub(super) fn allocate(
        &mut self,
        driver: &Driver,
        stream: u64,
        block: usize,
        transient: bool,
    ) -> Result<DevicePointer, i32> {
        if transient && self.arenas.serves(stream, block) {
            let least = GROWTH[usize::from(block >= LARGE)];
            // If there is not enough memory for an arena, the block alone is allocated.
            let grown = self.reserve(driver, stream, least.max(block), block >= LARGE);
            grown.or_else(|_| self.reserve(driver, stream, block, block >= LARGE))?;
            return self.take(stream, block, true).ok_or(OUT_OF_MEMORY);
        }
        let pointer = self.of_driver(driver, block)?;
        self.count(block);
        Ok(pointer)
    }

    /// Gives a stream arenas for small blocks, or one for large ones.
    pub(super) fn reserve(
        &mut self,
        driver: &Driver,
        stream: u64,
        bytes: usize,
        large: bool,
    ) -> Result<(), i32> {
        let mut left = bytes.next_multiple_of(LARGE_STEP);
        while left > 0 {
            let bytes = if large { left } else { left.min(GROWTH[0]) };
            let start = self.of_driver(driver, bytes)?;
            self.arenas.add(stream, start, bytes, large);
            self.usage.kept += bytes as u64;
            left -= bytes;
        }
        Ok(())
    }

    /// Whether a block stays allocated until the context ends.
    pub(super) fn is_reserved(&self, pointer: DevicePointer) -> bool {
        self.arenas.has(pointer)
    }

    fn of_driver(&mut self, driver: &Driver, bytes: usize) -> Result<DevicePointer, i32> {
        let mut pointer = 0;
        // SAFETY: the pointer is to a local that outlives the call.
        let mut code = unsafe { (driver.allocate)(&raw mut pointer, bytes) };
        if code == OUT_OF_MEMORY && !self.kept.is_empty() {
            self.release_kept(driver);
            // SAFETY: as above.
            code = unsafe { (driver.allocate)(&raw mut pointer, bytes) };
        }
        if code == 0 { Ok(pointer) } else { Err(code) }
    }

    fn count(&mut self, block: usize) {
        self.usage.live += block as u64;
        self.usage.high_water = self.usage.high_water.max(self.usage.live);
    }

    /// Caches a freed block.
    pub(super) fn give_back(&mut self, stream: u64, block: usize, pointer: DevicePointer) {
        self.usage.live -= block as u64;
        self.usage.kept += block as u64;
        if !self.arenas.give_back(pointer, block) {
            self.kept.entry((stream, block)).or_default().push(pointer);
        }
    }

    /// Returns every cached block outside arenas to the driver.
    fn release_kept(&mut self, driver: &Driver) {
        for ((_, block), pointers) in std::mem::take(&mut self.kept) {
            for pointer in pointers {
                // SAFETY: the block came from the driver and no buffer uses it; freeing waits for work that still does.
                unsafe { (driver.free)(pointer) };
                self.usage.kept -= block as u64;
            }
        }
    }

    /// Returns all memory to the driver: the context ends, and no buffers or graphs are left.
    pub(super) fn release_all(&mut self, driver: &Driver) {
        self.release_kept(driver);
        for start in std::mem::take(&mut self.arenas).starts() {
            // SAFETY: as above.
            unsafe { (driver.free)(start) };
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
        assert_eq!(pool.take(2, 1024, false), None);
        assert_eq!(pool.take(1, 512, true), None);
        assert_eq!(pool.usage(), MemoryUse { live: 0, high_water: 1024, kept: 1024 });
        assert_eq!(pool.take(1, 1024, true), Some(77), "without an arena");
        assert_eq!(pool.take(1, 1024, false), None);
        assert_eq!(pool.usage(), MemoryUse { live: 1024, high_water: 1024, kept: 0 });
    }

    #[test]
    fn only_transient_blocks_come_from_arenas() {
        let mut pool = Pool::default();
        pool.arenas.add(1, 0x1000_0000, 4096, false);
        pool.usage.kept = 4096;
        assert_eq!(pool.take(1, 1024, false), None);
        assert_eq!(pool.take(1, 1024, true), Some(0x1000_0000));
        assert!(pool.is_reserved(0x1000_0000) && !pool.is_reserved(0x1000_1000));
        pool.give_back(1, 1024, 0x1000_0000);
        assert_eq!(pool.take(1, 1024, false), None);
        assert_eq!(pool.take(1, 4096, true), Some(0x1000_0000));
        assert_eq!(pool.usage(), MemoryUse { live: 4096, high_water: 4096, kept: 0 });
    }
}
