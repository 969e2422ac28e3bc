//! Memory that launches stream through in the same order again and again, and threads that fetch its next part while they wait.
//!
//! A model's step multiplies with the same weights, one product behind the other, token after token. A thread that is done with its share of
//! one product waits for the slowest one, then for what stands between products; memory would be idle meanwhile. So each walk remembers
//! which one followed it, and waiting threads fetch the beginning of their share of it into their caches. What followed once may not follow
//! again, as a routed expert: only what did so twice in a row is fetched.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Lines that a waiting thread fetches between two looks for a launch: as many as a core can have in flight.
const LINES: usize = 16;
/// Bytes of its share that a thread fetches at most: two threads of a core share a second cache of 1 or 2 MiB.
const MOST: usize = 512 << 10;

/// A walk through weights that a launch makes each time it runs.
#[derive(Debug, Default)]
pub struct Walk {
    /// What was walked through behind it last time.
    next: Arc<Part>,
}

/// Where a walk is in memory, and how many bytes of it each thread begins with. Its numbers are only fetched from, never read through: torn
/// or out of date they cost time and nothing else.
#[derive(Debug, Default)]
pub(crate) struct Part {
    start: AtomicUsize,
    bytes: AtomicUsize,
    share: AtomicUsize,
    /// Whether it was the same the last two times.
    sure: AtomicBool,
}

impl Part {
    /// Says what it is this time.
    fn saw(&self, [start, bytes, share]: [usize; 3]) {
        self.sure.store(self.start.load(Ordering::Relaxed) == start, Ordering::Relaxed);
        self.set([start, bytes, share]);
    }

    /// Nothing where it may be another one.
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

/// What follows the present walk, for all threads.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    next: Part,
    last: Mutex<Option<Arc<Part>>>,
}

impl Ahead {
    /// A launch begins to walk through `memory`, of which each thread has `share` bytes.
    pub(crate) fn begin<T>(&self, walk: &Walk, memory: &[T], share: usize) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last.replace(Arc::clone(&walk.next)) {
            last.saw([memory.as_ptr().addr(), size_of_val(memory), share]);
        }
        self.next.set(walk.next.expected());
    }

    /// Fetches some more lines of what thread `index` will walk through next.
    pub(crate) fn fetch(&self, index: usize, fetched: &mut Fetched) {
        let [start, bytes, share] = self.next.get();
        if fetched.start != start {
            *fetched = Fetched { start, bytes: 0 };
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

/// How far a thread has come with the walk that starts there.
#[derive(Debug, Default)]
pub(crate) struct Fetched {
    start: usize,
    bytes: usize,
}

/// Asks for a cache line. An address that is no longer mapped is no error to the processor.
#[allow(unsafe_code)] // An instruction that reads nothing the program can see.
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
    fn a_walk_remembers_what_followed_it() {
        let (ahead, weights) = (Ahead::default(), vec![0u8; 3000]);
        let parts = [&weights[..1000], &weights[1000..2000], &weights[2000..]];
        let walks = [Walk::default(), Walk::default(), Walk::default()];
        let step = || {
            parts.iter().zip(&walks).map(|(part, walk)| {
                ahead.begin(walk, part, 100);
                ahead.next.get()
            })
        };
        let of = |at: usize| [parts[at].as_ptr().addr(), 1000, 100];
        // Two steps learn the order; the last walk knows its follower when the next step has begun.
        assert_eq!(step().collect::<Vec<_>>(), [[0; 3]; 3]);
        assert_eq!(step().collect::<Vec<_>>(), [[0; 3]; 3]);
        assert_eq!(step().collect::<Vec<_>>(), [of(1), of(2), of(0)]);
        // Another follower is none until it comes again; the others stay.
        let mut begin = |at: usize| {
            ahead.begin(&walks[at], parts[at], 100);
            ahead.next.get()
        };
        assert_eq!([0, 2, 0].map(&mut begin), [of(1), of(0), [0; 3]]);
        assert_eq!([2, 0].map(&mut begin), [of(0), of(2)]);
    }

    #[test]
    fn a_thread_fetches_its_share_once_and_no_more() {
        let (ahead, weights) = (Ahead::default(), vec![0u8; 10_000]);
        let (a, b) = (Walk::default(), Walk::default());
        let mut fetched = Fetched::default();
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
        // The last share is what is left; a thread without one has nothing to fetch.
        for (index, bytes) in [(2, 1024), (3, 0)] {
            let mut fetched = Fetched::default();
            (0..100).for_each(|_| ahead.fetch(index, &mut fetched));
            assert_eq!(fetched.bytes, bytes, "thread {index}");
        }
    }
}
