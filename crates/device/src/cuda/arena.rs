//! Arenas: memory that one stream allocates from the driver once and subdivides, for blocks whose content passes
//! between consecutive operations.
//!
//! A caching allocator with exact sizes grows with every new size: a server with a different number of tokens in each
//! step would keep a block for each. An arena splits its free blocks and merges neighbours, so that it serves any mix
//! of sizes that fits. It is never returned to the driver while the context exists: a captured graph may contain an
//! address in it without a reference to the block.

use super::driver::DevicePointer;
use std::collections::{BTreeMap, BTreeSet};

/// Blocks below this size have separate arenas: they live longest and would fragment the large ones.
pub(super) const LARGE: usize = 2 << 20;

/// A range of one driver allocation, of one stream.
#[derive(Debug)]
struct Arena {
    stream: u64,
    large: bool,
    bytes: usize,
    /// Free blocks by address. No two of them are neighbours.
    free: BTreeMap<DevicePointer, usize>,
}

/// All arenas of a context.
#[derive(Debug, Default)]
pub(super) struct Arenas {
    /// By start address.
    arenas: BTreeMap<DevicePointer, Arena>,
    /// Free blocks of each stream by size, smallest first.
    by_size: BTreeSet<(u64, bool, usize, DevicePointer)>,
}

impl Arenas {
    /// Adds memory from the driver.
    pub(super) fn add(&mut self, stream: u64, start: DevicePointer, bytes: usize, large: bool) {
        let free = BTreeMap::from([(start, bytes)]);
        self.arenas.insert(start, Arena { stream, large, bytes, free });
        self.by_size.insert((stream, large, bytes, start));
    }

    /// Whether a stream takes blocks of this size from arenas.
    pub(super) fn serves(&self, stream: u64, block: usize) -> bool {
        let large = block >= LARGE;
        self.arenas.values().any(|arena| arena.stream == stream && arena.large == large)
    }

    /// A block of this size: the start of the smallest free one that fits.
    pub(super) fn take(&mut self, stream: u64, block: usize) -> Option<DevicePointer> {
        let large = block >= LARGE;
        let fitting = (stream, large, block, 0)..=(stream, large, usize::MAX, DevicePointer::MAX);
        let best = *self.by_size.range(fitting).next()?;
        let (_, _, bytes, start) = best;
        self.by_size.remove(&best);
        let free = &mut self.around(start)?.1.free;
        free.remove(&start);
        if bytes > block {
            let rest = start + block as u64;
            free.insert(rest, bytes - block);
            self.by_size.insert((stream, large, bytes - block, rest));
        }
        Some(start)
    }

    /// Frees a block and merges it with its free neighbours; returns whether it belongs to an arena.
    pub(super) fn give_back(&mut self, start: DevicePointer, block: usize) -> bool {
        let Some((_, arena)) = self.around(start) else { return false };
        let (stream, large) = (arena.stream, arena.large);
        let (mut first, mut bytes, mut joined) = (start, block, Vec::new());
        if let Some((before, length)) = arena.free.range(..start).next_back()
            && before + *length as u64 == start
        {
            joined.push((*before, *length));
            (first, bytes) = (*before, bytes + length);
        }
        let end = start + block as u64;
        if let Some(length) = arena.free.get(&end) {
            joined.push((end, *length));
            bytes += length;
        }
        for (at, _) in &joined {
            arena.free.remove(at);
        }
        arena.free.insert(first, bytes);
        for (at, length) in joined {
            self.by_size.remove(&(stream, large, length, at));
        }
        self.by_size.insert((stream, large, bytes, first));
        true
    }

    /// Whether an address is in an arena.
    pub(super) fn has(&self, address: DevicePointer) -> bool {
        let before = self.arenas.range(..=address).next_back();
        before.is_some_and(|(start, arena)| address - start < arena.bytes as u64)
    }

    /// Start addresses of the arenas.
    pub(super) fn starts(&self) -> impl Iterator<Item = DevicePointer> {
        self.arenas.keys().copied()
    }

    fn around(&mut self, address: DevicePointer) -> Option<(DevicePointer, &mut Arena)> {
        let (start, arena) = self.arenas.range_mut(..=address).next_back()?;
        (address - start < arena.bytes as u64).then_some((*start, arena))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn free_neighbours_become_one_block_again() {
        let mut arenas = Arenas::default();
        arenas.add(1, 0x1000_0000, 16 * MIB, true);
        let blocks: Vec<_> = (0..4).map(|_| arenas.take(1, 4 * MIB).unwrap()).collect();
        assert_eq!(arenas.take(1, 2 * MIB), None);
        for at in [1, 3, 0, 2] {
            assert!(arenas.give_back(blocks[at], 4 * MIB));
        }
        assert_eq!(arenas.take(1, 16 * MIB), Some(0x1000_0000));
        assert!(!arenas.give_back(0x1000_0000 + 16 * MIB as u64, 512), "the arena ends there");
    }

    #[test]
    fn the_smallest_block_that_fits_is_split() {
        let mut arenas = Arenas::default();
        arenas.add(1, 0x1000_0000, 16 * MIB, true);
        arenas.add(1, 0x4000_0000, 6 * MIB, true);
        assert_eq!(arenas.take(1, 4 * MIB), Some(0x4000_0000));
        assert_eq!(arenas.take(1, 4 * MIB), Some(0x1000_0000));
        assert_eq!(arenas.take(1, 2 * MIB), Some(0x4000_0000 + 4 * MIB as u64));
        // Another stream has a different order, and small blocks have separate arenas.
        assert_eq!((arenas.take(2, 2 * MIB), arenas.take(1, 512)), (None, None));
        assert_eq!([arenas.serves(1, 2 * MIB), arenas.serves(1, 512)], [true, false]);
    }

    /// Any mix of sizes whose sum fits keeps fitting, unlike in an exact-size cache.
    #[test]
    fn other_sizes_each_time_take_no_more_memory() {
        let mut arenas = Arenas::default();
        arenas.add(1, 0x1000_0000, 64 * MIB, true);
        let mut random = 7u64;
        for step in 0..10_000 {
            let mut live = Vec::new();
            for _ in 0..8 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let block = (2 + (random >> 60) as usize % 3 * 2) * MIB;
                live.push((arenas.take(1, block).unwrap_or_else(|| panic!("step {step}")), block));
            }
            let all: BTreeSet<_> = live.iter().map(|(start, _)| *start).collect();
            assert_eq!(all.len(), 8);
            // Freed in another order than allocated.
            live.sort_by_key(|(start, _)| start.rotate_left(step % 64));
            for (start, block) in live {
                assert!(arenas.give_back(start, block));
            }
        }
        assert_eq!(arenas.take(1, 64 * MIB), Some(0x1000_0000));
    }
}
