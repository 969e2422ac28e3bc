//! Host memory of tensors.
#![allow(unsafe_code)] // An allocation with an alignment that `Vec` does not support.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a cache line, and of the widest vector register.
const LINE: usize = 64;
/// Bytes of a huge page on x86-64 and on aarch64 with 4 KiB pages.
const HUGE_PAGE: usize = 2 << 20;
/// Buffers of at least this many bytes are aligned to huge pages.
const LARGE: usize = HUGE_PAGE;

/// Buffers of at least this many bytes are first written by several threads: the system clears each page on first touch,
/// at two or three gigabytes per second and thread.
const PARALLEL: usize = 64 << 20;
/// Bytes of a run, which a thread writes at a time.
const RUN: usize = 4 * HUGE_PAGE;
/// Threads that saturate the memory bandwidth.
const THREADS: usize = 8;

/// Values in host memory aligned to a cache line, so that vectors do not cross lines: non-temporal stores require alignment,
/// and a load across two lines costs two accesses. Large buffers request huge pages, which save most page table look-ups of
/// kernels that read them once.
///
/// Cloning is copy-on-write: a clone shares the memory until one of the two is written. A buffer may also borrow memory of
/// another library; a clone of it is a copy.
pub struct HostBuffer<T: Copy + Send + Sync> {
    start: NonNull<T>,
    len: usize,
    /// `None` for borrowed memory and for an empty buffer.
    memory: Option<Arc<Memory>>,
}

/// Memory that is freed with its last buffer.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it is only an address; its buffers control access.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `HostBuffer::new` with this layout. The values are `Copy` and need no drop.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

// SAFETY: values shared by several buffers are only read.
unsafe impl<T: Copy + Send + Sync> Send for HostBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Copy + Send + Sync> Sync for HostBuffer<T> {}

impl<T: Copy + Send + Sync> HostBuffer<T> {
    /// Values of a run, which a thread writes at a time.
    const RUN: usize = RUN / if size_of::<T>() == 0 { 1 } else { size_of::<T>() };

    /// `len` values that `fill` computes on all cores in runs of `run` values. It gets the index of a run and the values to
    /// overwrite.
    pub fn from_runs(len: usize, run: usize, fill: impl Fn(usize, &mut [T]) + Sync) -> Self
    where
        T: Default,
    {
        Self::from_runs_with(len, run, || (), |(), nth, values| fill(nth, values))
    }

    /// As [`Self::from_runs`], with a separate `state` for each thread.
    pub fn from_runs_with<S>(
        len: usize,
        run: usize,
        state: impl Fn() -> S + Sync,
        fill: impl Fn(&mut S, usize, &mut [T]) + Sync,
    ) -> Self
    where
        T: Default,
    {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::new(len, |start| {
            for_each_run(len, run, cores, Start(start), &state, |state, start, range| {
                let (nth, count) = (range.start / run, range.len());
                for index in range.clone() {
                    // SAFETY: `new` allocated `len` values.
                    unsafe { start.add(index).write(T::default()) };
                }
                // SAFETY: these values were just written, and no other run overlaps them.
                let values =
                    unsafe { std::slice::from_raw_parts_mut(start.add(range.start), count) };
                fill(state, nth, values);
            });
        })
    }

    /// `len` copies of one value.
    pub fn filled(value: T, len: usize) -> Self {
        Self::new(len, |start| {
            let (run, threads) = (Self::RUN, threads(len.saturating_mul(size_of::<T>())));
            for_each_run(
                len,
                run,
                threads,
                Start(start),
                || (),
                |(), start, run| {
                    for index in run {
                        // SAFETY: `new` allocated `len` values.
                        unsafe { start.add(index).write(value) };
                    }
                },
            );
        })
    }

    /// A copy of a slice.
    pub fn from_slice(values: &[T]) -> Self {
        Self::new(values.len(), |start| {
            for_each_run(
                values.len(),
                Self::RUN,
                threads(size_of_val(values)),
                Start(start),
                || (),
                |(), start, run| {
                    let part = &values[run.clone()];
                    // SAFETY: `new` allocated as many values; a fresh allocation overlaps nothing.
                    unsafe {
                        start.add(run.start).copy_from_nonoverlapping(part.as_ptr(), part.len())
                    };
                },
            );
        })
    }

    /// Concatenated slices, `len` values in total.
    ///
    /// # Panics
    /// They have more or fewer values.
    pub fn concatenated<'a>(len: usize, parts: impl Iterator<Item = &'a [T]>) -> Self
    where
        T: 'a,
    {
        Self::new(len, |start| {
            let mut written = 0;
            for part in parts {
                assert!(part.len() <= len - written, "more than {len} values");
                // SAFETY: `new` allocated `len` values, of which enough are left.
                unsafe { start.add(written).copy_from_nonoverlapping(part.as_ptr(), part.len()) };
                written += part.len();
            }
            assert_eq!(written, len, "values");
        })
    }

    /// An uninitialised buffer of `len` values.
    pub fn uninit(len: usize) -> HostBuffer<MaybeUninit<T>> {
        // Such values need no initialisation.
        HostBuffer::new(len, |_| ())
    }

    /// Allocates `len` values, which `write` must initialise.
    fn new(len: usize, write: impl FnOnce(*mut T)) -> Self {
        let layout = Self::layout(len);
        if layout.size() == 0 {
            return Self { start: NonNull::dangling(), len, memory: None };
        }
        // SAFETY: the size is not zero.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }.cast::<T>()) else {
            handle_alloc_error(layout)
        };
        let memory = Arc::new(Memory { start: start.cast(), layout });
        advise(start.as_ptr().cast(), layout);
        write(start.as_ptr());
        Self { start, len, memory: Some(memory) }
    }

    /// A buffer over memory of another library; `None` if it is not aligned to a cache line.
    ///
    /// # Safety
    /// There are `len` initialised values, which no other code writes while this buffer exists, or reads while it is
    /// written.
    pub unsafe fn from_borrowed(start: *mut T, len: usize) -> Option<Self> {
        let start = if len == 0 { NonNull::dangling() } else { NonNull::new(start)? };
        let fits = len == 0 || start.addr().get().is_multiple_of(LINE);
        fits.then_some(Self { start, len, memory: None })
    }

    fn layout(len: usize) -> Layout {
        let bytes = len.saturating_mul(size_of::<T>());
        let align = if bytes >= LARGE { HUGE_PAGE } else { LINE };
        match Layout::from_size_align(bytes, align.max(align_of::<T>())) {
            Ok(layout) => layout,
            Err(_) => panic!("{len} values of {} bytes exceed the address space", size_of::<T>()),
        }
    }
}

/// Address of values that several threads write at disjoint indices.
#[derive(Clone, Copy)]
struct Start<T>(*mut T);

// SAFETY: `for_each_run` gives each index to one thread.
unsafe impl<T> Sync for Start<T> {}

/// Calls `write` with disjoint ranges of at most `run` that cover `0..len`, on several threads, each with its own
/// value from `state`.
fn for_each_run<T, S>(
    len: usize,
    run: usize,
    threads: usize,
    start: Start<T>,
    state: impl Fn() -> S + Sync,
    write: impl Fn(&mut S, *mut T, Range<usize>) + Sync,
) {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut state = state();
        loop {
            let from = next.fetch_add(run, Ordering::Relaxed);
            if from >= len {
                break;
            }
            let start = &start;
            write(&mut state, start.0, from..len.min(from + run));
        }
    };
    if threads < 2 || len <= run {
        return work();
    }
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
}

/// Number of threads that write a buffer of this many bytes.
fn threads(bytes: usize) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    if bytes < PARALLEL { 1 } else { cores().min(THREADS) }
}

/// Requests huge pages, if the system provides them on request. It only affects speed.
fn advise(start: *mut u8, layout: Layout) {
    #[cfg(target_os = "linux")]
    if layout.align() == HUGE_PAGE {
        // SAFETY: the range is this allocation's own, and the advice does not change its content.
        unsafe { libc::madvise(start.cast(), layout.size(), libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, layout);
}

impl<T: Copy + Send + Sync> HostBuffer<MaybeUninit<T>> {
    /// The buffer after initialisation.
    ///
    /// # Safety
    /// Every value was written.
    pub unsafe fn assume_init(self) -> HostBuffer<T> {
        HostBuffer { start: self.start.cast(), len: self.len, memory: self.memory }
    }
}

impl<T: Copy + Send + Sync> Deref for HostBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `new` had `len` values initialised; an empty buffer's pointer is dangling but aligned.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Copy + Send + Sync> DerefMut for HostBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        if self.memory.as_mut().is_some_and(|memory| Arc::get_mut(memory).is_none()) {
            *self = Self::from_slice(self);
        }
        // SAFETY: as for `deref`; `self` is borrowed exclusively, and no other buffer shares this memory.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Copy + Send + Sync> From<Vec<T>> for HostBuffer<T> {
    fn from(values: Vec<T>) -> Self {
        Self::from_slice(&values)
    }
}

impl<T: Copy + Send + Sync> Clone for HostBuffer<T> {
    fn clone(&self) -> Self {
        match &self.memory {
            Some(memory) => {
                Self { start: self.start, len: self.len, memory: Some(Arc::clone(memory)) }
            }
            None => Self::from_slice(self),
        }
    }
}

impl<T: Copy + Send + Sync + PartialEq> PartialEq for HostBuffer<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Copy + Send + Sync + std::fmt::Debug> std::fmt::Debug for HostBuffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_clones_are_copy_on_write() {
        for len in [0, 1, 15, 1000, LARGE / 4 - 1, LARGE / 4, LARGE / 4 + 5, PARALLEL / 4 + 7] {
            let values: Vec<u32> = (0..len as u32).collect();
            let buffer = HostBuffer::from(values.clone());
            assert_eq!(*buffer, *values);
            for run in [7, 1000] {
                let number = |nth: usize, values: &mut [u32]| {
                    let first = (nth * run) as u32;
                    values.iter_mut().zip(first..).for_each(|(value, number)| *value = number);
                };
                // A thread takes one run at a time: many thousands would be slow.
                if len < 2000 {
                    assert_eq!(HostBuffer::from_runs(len, run, number), buffer);
                }
            }
            let align = if len * 4 >= LARGE { HUGE_PAGE } else { LINE };
            if len > 0 {
                assert_eq!(buffer.as_ptr().addr() % align, 0, "{len}");
            }
            let mut owner = buffer.clone();
            // SAFETY: the owner outlives the borrow, and is not accessed meanwhile.
            let mut borrowed =
                unsafe { HostBuffer::from_borrowed(owner.as_mut_ptr(), len) }.unwrap();
            assert_eq!(borrowed, buffer);
            borrowed.fill(9);
            drop(borrowed);
            assert_eq!(owner, HostBuffer::filled(9, len));
            // SAFETY: the result is `None` for unaligned memory.
            let shifted =
                unsafe { HostBuffer::from_borrowed(owner.as_mut_ptr().wrapping_add(1), 1) };
            assert!(shifted.is_none());
            let mut copy = buffer.clone();
            assert_eq!((&copy, copy.as_ptr()), (&buffer, buffer.as_ptr()), "a copy before a write");
            copy.fill(7);
            assert_eq!(copy, HostBuffer::filled(7, len));
            assert_eq!(*buffer, *values, "a write to a clone changed its origin");
            // The last buffer over some memory writes it in place.
            let (at, mut last) = (buffer.as_ptr(), buffer.clone());
            drop(buffer);
            last.fill(8);
            assert_eq!((&last, last.as_ptr()), (&HostBuffer::filled(8, len), at));
        }
    }
}
