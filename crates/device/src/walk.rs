//! Prefetches memory that launches stream through in the same order repeatedly, on threads that wait.
//!
//! A model's step multiplies with the same weights in the same order for every token. A thread that has finished its
//! share of one product waits for the slowest thread, and then for the operations between products, while the memory
//! would be idle. So each iteration records its successor, and waiting threads prefetch the start of their share of it into
//! their caches. A successor may change, for example a routed expert: only one that occurred twice in a row is
//! prefetched.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Lines that a waiting thread prefetches between two polls: as many as a core can have in flight.
const LINES: usize = 16;
/// Maximum bytes that a thread prefetches: two threads of a core share an L2 of 1 or 2 MiB.
const MOST: usize = 512 << 10;

/// The weights that a launch reads each time it runs.
#[derive(Debug, Default)]
pub struct WeightReads {
    /// The weights that were read after it last time.
    next: Arc<Part>,
}

/// Address and size of the weights, and the bytes that each thread starts with. They are only prefetch addresses: torn
/// or outdated values cost only time.
#[derive(Debug, Default)]
pub(crate) struct Part {
    start: AtomicUsize,
    bytes: AtomicUsize,
    share: AtomicUsize,
    /// Whether it was the same the last two times.
    sure: AtomicBool,
}

impl Part {
    /// Records the successor.
    fn record_successor(&self, [start, bytes, share]: [usize; 3]) {
        self.sure.store(self.start.load(Ordering::Relaxed) == start, Ordering::Relaxed);
        self.set([start, bytes, share]);
    }

    /// Zeros if it is not certain.
    fn expected(&self) -> [usize; 3] {
        if self.sure.load(Ordering::Relaxed) { self.get() } else { [0; 3] }
    }

    fn set(&self, [start, bytes, share]: [usize; 3]) {
        self.start.store(start, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.share.store(share, Ordering::Relaxed);
    }

    fn get(&self) -> [usize; 3] {
        [&self.start, &self.bytes, &self.share].map(|value| value.load(Ordering::Relaxed))
    }
}

/// The successor of the current iteration, for all threads.
#[derive(Debug, Default)]
pub(crate) struct NextReads {
    next: Part,
    last: Mutex<Option<Arc<Part>>>,
}

impl NextReads {
    /// A launch starts to read `memory`, of which each thread has `share` bytes.
    pub(crate) fn begin<T>(&self, walk: &WeightReads, memory: &[T], share: usize) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last.replace(Arc::clone(&walk.next)) {
            last.record_successor([memory.as_ptr().addr(), size_of_val(memory), share]);
        }
        self.next.set(walk.next.expected());
    }

    /// Prefetches some more lines of the next share of thread `index`.
    pub(crate) fn fetch(&self, index: usize, fetched: &mut PrefetchProgress) {
        let [start, bytes, share] = self.next.get();
        if fetched.start != start {
            *fetched = PrefetchProgress { start, bytes: 0 };
        }
        let first = index.saturating_mul(share);
        let end = first.saturating_add(share.min(MOST)).min(bytes);
        let at = first.saturating_add(fetched.bytes);
        if at < end {
            for line in (at..end).step_by(LINE).take(LINES) {
                fetch(start.wrapping_add(line));
            }
            fetched.bytes += LINES * LINE;
        }
    }
}

/// A thread's progress in prefetching from a start address.
#[derive(Debug, Default)]
pub(crate) struct PrefetchProgress {
    start: usize,
    bytes: usize,
}

/// Prefetches a cache line. An unmapped address is ignored by the processor.
#[allow(unsafe_code)] // An instruction without visible effects.
fn fetch(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of the architecture, and a hint cannot fault.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(std::ptr::without_provenance(address));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint cannot fault and changes no register.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iteration_records_its_successor() {
        let (ahead, weights) = (NextReads::default(), vec![0u8; 3000]);
        let parts = [&weights[..1000], &weights[1000..2000], &weights[2000..]];
        let walks = [WeightReads::default(), WeightReads::default(), WeightReads::default()];
        let step = || {
            parts.iter().zip(&walks).map(|(part, walk)| {
                ahead.begin(walk, part, 100);
                ahead.next.get()
            })
        };
        let of = |at: usize| [parts[at].as_ptr().addr(), 1000, 100];
        // The order is known after two steps; the last iteration learns its successor when the next step starts.
        assert_eq!(step().collect::<Vec<_>>(), [[0; 3]; 3]);
        assert_eq!(step().collect::<Vec<_>>(), [[0; 3]; 3]);
        assert_eq!(step().collect::<Vec<_>>(), [of(1), of(2), of(0)]);
        // A new successor is not used until it occurs again; the others stay.
        let mut begin = |at: usize| {
            ahead.begin(&walks[at], parts[at], 100);
            ahead.next.get()
        };
        assert_eq!([0, 2, 0].map(&mut begin), [of(1), of(0), [0; 3]]);
        assert_eq!([2, 0].map(&mut begin), [of(0), of(2)]);
    }

    #[test]
    fn a_thread_fetches_its_share_once_and_no_more() {
        let (ahead, weights) = (NextReads::default(), vec![0u8; 10_000]);
        let (a, b) = (WeightReads::default(), WeightReads::default());
        let mut fetched = PrefetchProgress::default();
        ahead.fetch(1, &mut fetched);
        assert_eq!(fetched.bytes, 0, "nothing is known yet");
        for _ in 0..3 {
            ahead.begin(&a, &weights[..5000], 2048);
            ahead.begin(&b, &weights[5000..], 2048);
        }
        for _ in 0..100 {
            ahead.fetch(1, &mut fetched);
        }
        assert_eq!((fetched.start, fetched.bytes), (weights.as_ptr().addr(), 2048));
        // The last share is the remainder; a thread without one prefetches nothing.
        for (index, bytes) in [(2, 1024), (3, 0)] {
            let mut fetched = PrefetchProgress::default();
            (0..100).for_each(|_| ahead.fetch(index, &mut fetched));
            assert_eq!(fetched.bytes, bytes, "thread {index}");
        }
    }
}
