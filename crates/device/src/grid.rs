//! Runs the blocks of a launch on all threads of the CPU backend.
#![allow(unsafe_code)] // Blocks write disjoint parts of one output; the compiler cannot see that they are disjoint.

use crate::{Device, WeightReads, team};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

impl Device {
    /// Runs `body` once for each block index below `grid`, on all threads, and counts the launch under `kernel`.
    ///
    /// Each thread creates one `scratch` and keeps it for all its blocks. Threads take blocks in order, one at a time,
    /// so uneven blocks (causal rows, short sequences) balance; a block's result must not depend on its thread.
    pub fn launch<S>(
        &self,
        kernel: &str,
        grid: usize,
        scratch: impl Fn() -> S + Sync,
        body: impl Fn(&mut S, usize) + Sync,
    ) {
        self.run(kernel, grid, 1, scratch, body);
    }

    /// As [`Device::launch`], but each thread starts with its own range of adjacent blocks, and takes others' only when
    /// that is done. For blocks that stream through memory once: each thread reads one long range, which is up to twice
    /// as fast as ranges that alternate between threads.
    pub fn launch_streaming<S>(
        &self,
        kernel: &str,
        grid: usize,
        scratch: impl Fn() -> S + Sync,
        body: impl Fn(&mut S, usize) + Sync,
    ) {
        self.run(kernel, grid, self.capabilities().threads, scratch, body);
    }

    /// As [`Device::launch_streaming`], for consecutive blocks of `bytes` in `memory`. Waiting threads, in this launch
    /// or after it, prefetch the start of the memory that was read after `walk` the last two times.
    pub fn launch_prefetching<T, S>(
        &self,
        kernel: &str,
        grid: usize,
        (walk, memory, bytes): (&WeightReads, &[T], usize),
        scratch: impl Fn() -> S + Sync,
        body: impl Fn(&mut S, usize) + Sync,
    ) {
        let threads = self.capabilities().threads;
        if threads > 1 {
            team::begin(walk, memory, grid.div_ceil(threads) * bytes);
        }
        self.run(kernel, grid, threads, scratch, body);
    }

    /// Runs a grid divided into `shares` ranges of adjacent blocks.
    fn run<S>(
        &self,
        kernel: &str,
        grid: usize,
        shares: usize,
        scratch: impl Fn() -> S + Sync,
        body: impl Fn(&mut S, usize) + Sync,
    ) {
        let share = grid.div_ceil(shares).max(1);
        let next: Vec<NextBlock> =
            (0..grid).step_by(share).map(|block| NextBlock(AtomicUsize::new(block))).collect();
        let done = AtomicU64::new(0);
        let work = |first: usize| {
            let (mut own, mut count) = (None, 0);
            for turn in 0..next.len() {
                let range = (first + turn) % next.len();
                let end = ((range + 1) * share).min(grid);
                loop {
                    let block = next[range].0.fetch_add(1, Ordering::Relaxed);
                    if block >= end {
                        break;
                    }
                    body(own.get_or_insert_with(&scratch), block);
                    count += 1;
                }
            }
            done.fetch_add(count, Ordering::Relaxed);
            order_streamed_stores();
        };
        let workers = self.capabilities().threads.min(grid);
        if workers <= 1 {
            work(0);
        } else {
            team::run(workers, &work);
        }
        self.launches().record(kernel, done.into_inner());
    }
}

/// The next block of a range, in a separate cache line, because threads write it for every block.
#[repr(align(64))]
struct NextBlock(AtomicUsize);

/// Makes a thread's non-temporal stores visible before it ends, which no other instruction does. Once for all blocks of
/// a thread, because it waits for memory.
fn order_streamed_stores() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of the architecture.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// A slice of which the blocks of one launch write disjoint parts.
pub struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: access is only through `slice`, whose contract forbids overlapping parts.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}
// SAFETY: as above; the borrow it holds is exclusive.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Shares `slice` between the blocks of a launch.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// One block's part.
    ///
    /// # Safety
    /// No two live parts may overlap.
    ///
    /// # Panics
    /// The range exceeds the slice.
    #[allow(clippy::mut_from_ref)] // This is the purpose of the type; the contract above makes it sound.
    pub unsafe fn slice(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "block writes {range:?} of {} elements",
            self.len
        );
        // SAFETY: the range is inside the slice, and the caller keeps parts disjoint.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start)
        }
    }
}
