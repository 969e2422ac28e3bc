//! A spinning thread pool: a token of a model takes hundreds of launches of tens of microseconds, and waking sleeping
//! threads for each would cost as much again.
#![allow(unsafe_code)] // A borrowed closure is passed to threads that outlive it; the launch ends only when all have left it.

use crate::walk::{NextReads, PrefetchProgress, WeightReads};
use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

/// Number of polls of the launch word before a thread sleeps: about a hundred microseconds, several times the gap
/// between two launches of a model's step.
const LOOKS: u32 = 4_000;
/// Number of polls before a thread yields its core between polls: on a busy machine the thread that it waits for may
/// need it.
const ALONE: u32 = 2_000;

/// Bits of the word that contain the number of participating threads.
const COUNT_BITS: u32 = 16;

/// Maximum number of threads of a launch.
static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);

type Job = *const (dyn Fn(usize) + Sync);

static TEAM: OnceLock<Option<&'static Team>> = OnceLock::new();

/// The process's threads, in addition to the launching one.
struct Team {
    /// The launch number, and the number of participating threads in the lower bits: read together, so that a late
    /// thread never joins a launch that did not count it.
    word: AtomicU64,
    /// The closure of the launch; written only while no thread is inside one.
    job: UnsafeCell<Option<Job>>,
    /// Threads that have not left the launch yet.
    inside: AtomicUsize,
    asleep: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    /// Wakes threads that were excluded because the process is restricted to fewer cores.
    more: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Held by the launching thread.
    lead: Mutex<()>,
    /// The prefetches of waiting threads.
    ahead: NextReads,
    threads: usize,
}

// SAFETY: `job` is written by the holder of `lead` while `inside` is 0, and read by threads that `inside` counts.
unsafe impl Sync for Team {}
// SAFETY: as above.
unsafe impl Send for Team {}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Team {
    /// The process's thread pool, created on first use; none if threads cannot be created.
    fn get() -> Option<&'static Self> {
        *TEAM.get_or_init(|| {
            let threads = rayon::current_num_threads();
            let team: &'static Self = Box::leak(Box::new(Self {
                word: AtomicU64::new(0),
                job: UnsafeCell::new(None),
                inside: AtomicUsize::new(0),
                asleep: AtomicUsize::new(0),
                sleep: Mutex::new(()),
                wake: Condvar::new(),
                more: Condvar::new(),
                panic: Mutex::new(None),
                lead: Mutex::new(()),
                ahead: NextReads::default(),
                threads,
            }));
            let begin = |index: usize| {
                let name = format!("launch-{index}");
                std::thread::Builder::new().name(name).spawn(move || team.serve(index))
            };
            (1..threads).all(|index| begin(index).is_ok()).then_some(team)
        })
    }

    /// The loop of a pool thread.
    fn serve(&self, index: usize) {
        let (mut seen, mut fetched) = (0, PrefetchProgress::default());
        loop {
            self.sleep_while_unused(index);
            let word = self.next(seen, index, &mut fetched);
            seen = word;
            if index as u64 >= word & ((1 << COUNT_BITS) - 1) {
                continue;
            }
            // SAFETY: this launch counts this thread, so `job` stays until it has left.
            let job = unsafe { *self.job.get() };
            if let Some(job) = job {
                // SAFETY: the closure lives until `inside` is 0.
                let run = || unsafe { (*job)(index) };
                if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
                    *locked(&self.panic) = Some(panic);
                }
            }
            self.inside.fetch_sub(1, Ordering::Release);
        }
    }

    /// Sleeps while launches use fewer threads: spinning, it would take cores from the working ones.
    fn sleep_while_unused(&self, index: usize) {
        let kept_out = || index >= MOST.load(Ordering::SeqCst);
        if kept_out() {
            let mut guard = locked(&self.sleep);
            while kept_out() {
                guard = self.more.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Waits for another word: spins at first, and sleeps after a while.
    fn next(&self, seen: u64, index: usize, fetched: &mut PrefetchProgress) -> u64 {
        for look in 0..LOOKS {
            let word = self.word.load(Ordering::Acquire);
            if word != seen {
                return word;
            }
            self.ahead.fetch(index, fetched);
            pause(look);
        }
        let mut guard = locked(&self.sleep);
        self.asleep.fetch_add(1, Ordering::SeqCst);
        let word = loop {
            let word = self.word.load(Ordering::SeqCst);
            if word != seen {
                break word;
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        self.asleep.fetch_sub(1, Ordering::SeqCst);
        word
    }

    /// Runs `work` on at most this many threads, including this one.
    fn run(&self, workers: usize, work: &(dyn Fn(usize) + Sync)) {
        // It does not change while `lead` is held.
        let workers = workers.min(MOST.load(Ordering::SeqCst));
        // SAFETY: only the lifetime changes, and this function does not return before every thread has left the closure.
        let job = unsafe {
            std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(work)
        };
        // SAFETY: `lead` is held and no thread is inside a launch.
        unsafe { *self.job.get() = Some(job) };
        self.inside.store(workers - 1, Ordering::Relaxed);
        let number = (self.word.load(Ordering::Relaxed) >> COUNT_BITS) + 1;
        self.word.store(number << COUNT_BITS | workers as u64, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) > 0 {
            let _sleep = locked(&self.sleep);
            self.wake.notify_all();
        }
        let own = catch_unwind(AssertUnwindSafe(|| work(0)));
        let (mut look, mut fetched) = (0, PrefetchProgress::default());
        while self.inside.load(Ordering::Acquire) > 0 {
            self.ahead.fetch(0, &mut fetched);
            pause(look);
            look += 1;
        }
        if let Some(panic) = locked(&self.panic).take() {
            resume_unwind(panic);
        }
        if let Err(panic) = own {
            resume_unwind(panic);
        }
    }
}

fn pause(look: u32) {
    if look < ALONE {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// The next launch reads `memory`, of which each thread starts with `share` bytes.
pub(crate) fn begin<T>(walk: &WeightReads, memory: &[T], share: usize) {
    if let Some(team) = Team::get() {
        team.ahead.begin(walk, memory, share);
    }
}

/// Limits launches to this many threads: the number of cores, if the process is restricted to fewer than at its start.
/// With more threads than cores, each spins while the others wait for its core. With four threads per core, `check`
/// verified for 69 s, with one per core for 3 s.
pub fn limit_threads(threads: usize) {
    let set = || MOST.store(threads.max(1), Ordering::SeqCst);
    let Some(Some(team)) = TEAM.get() else { return set() };
    let _lead = locked(&team.lead);
    let _sleep = locked(&team.sleep);
    set();
    team.more.notify_all();
}

/// Runs `work` with the numbers from 0 to `workers` on as many threads, or fewer numbers on fewer threads
/// ([`limit_threads`]): it must complete the launch with any number of threads. If another launch uses the pool,
/// including an enclosing one, rayon's threads run it.
pub(crate) fn run(workers: usize, work: &(dyn Fn(usize) + Sync)) {
    let team = Team::get().filter(|team| workers <= team.threads);
    if let Some(team) = team {
        let lead = match team.lead.try_lock() {
            Ok(lead) => Some(lead),
            // A launch that panicked has left the pool unchanged.
            Err(TryLockError::Poisoned(lead)) => Some(lead.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(_lead) = lead {
            return team.run(workers, work);
        }
    }
    rayon::scope(|scope| {
        for worker in 1..workers.min(MOST.load(Ordering::SeqCst)) {
            scope.spawn(move |_| work(worker));
        }
        work(0);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    /// Number of pool threads, at least two.
    fn workers() -> usize {
        rayon::current_num_threads().max(2)
    }

    #[test]
    fn each_number_runs_once_in_every_launch() {
        for launch in 0..3_000 {
            let workers = 1 + launch % workers();
            let ran: Vec<AtomicU32> = (0..workers).map(|_| AtomicU32::new(0)).collect();
            run(workers, &|worker| {
                ran[worker].fetch_add(1, Ordering::Relaxed);
            });
            assert!(ran.iter().all(|count| count.load(Ordering::Relaxed) == 1), "launch {launch}");
            if launch % 1_000 == 999 {
                // Long enough for every thread to fall asleep.
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
    }

    #[test]
    fn nested_and_concurrent_launches() {
        let count = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        run(2, &|_| {
                            run(2, &|_| {
                                count.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 4 * 200 * 4);
    }

    #[test]
    fn a_panic_comes_out_of_the_launch_and_the_next_one_runs() {
        for culprit in 0..workers() {
            let launch = || {
                run(workers(), &|worker| assert!(worker != culprit, "worker {worker} gave up"));
            };
            let panic = catch_unwind(launch).unwrap_err();
            let words = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            assert!(words.contains("gave up"), "{words}");
            let count = AtomicU32::new(0);
            run(workers(), &|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner() as usize, workers());
        }
    }
}
