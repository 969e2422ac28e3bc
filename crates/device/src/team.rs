//! Threads that wait for the next launch awake: a token of a model takes hundreds of launches of tens of microseconds, and waking
//! sleeping threads for each costs as much again.
#![allow(unsafe_code)] // A borrowed closure is handed to threads that outlive it; the launch ends only when all have left it.

use crate::walk::{Ahead, Fetched, Walk};
use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

/// Looks at the word of the launch before a thread goes to sleep: about a hundred microseconds, several times what passes
/// between two launches of a model's step.
const LOOKS: u32 = 4_000;
/// Looks before a thread lets others have its core between them: on a busy machine the one it waits for may need it.
const ALONE: u32 = 2_000;

/// Bits of the word that say how many threads take part.
const COUNT_BITS: u32 = 16;

/// Most threads of a launch.
static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);

type Job = *const (dyn Fn(usize) + Sync);

static TEAM: OnceLock<Option<&'static Team>> = OnceLock::new();

/// The process's threads, beside the one that launches.
struct Team {
    /// Number of the launch, and in the lower bits how many threads it has: read at once, so that a thread that comes late never
    /// takes part in a launch that did not count on it.
    word: AtomicU64,
    /// What the launch runs; written only while no thread takes part in one.
    job: UnsafeCell<Option<Job>>,
    /// Threads that have not left the launch yet.
    inside: AtomicUsize,
    asleep: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    /// Wakes those that had no part in launches because the process was kept to fewer cores.
    more: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Held by the thread that launches.
    lead: Mutex<()>,
    /// What waiting threads fetch.
    ahead: Ahead,
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
    /// The process's team, begun when it is first wanted; none where threads cannot be had.
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
                ahead: Ahead::default(),
                threads,
            }));
            let begin = |index: usize| {
                let name = format!("launch-{index}");
                std::thread::Builder::new().name(name).spawn(move || team.serve(index))
            };
            (1..threads).all(|index| begin(index).is_ok()).then_some(team)
        })
    }

    /// What a thread of the team does.
    fn serve(&self, index: usize) {
        let (mut seen, mut fetched) = (0, Fetched::default());
        loop {
            self.stay_out(index);
            let word = self.next(seen, index, &mut fetched);
            seen = word;
            if index as u64 >= word & ((1 << COUNT_BITS) - 1) {
                continue;
            }
            // SAFETY: this launch counts on this thread, so `job` stays until it has left.
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

    /// Sleeps while launches take fewer threads: awake, it would keep those that work from their cores.
    fn stay_out(&self, index: usize) {
        let kept_out = || index >= MOST.load(Ordering::SeqCst);
        if kept_out() {
            let mut guard = locked(&self.sleep);
            while kept_out() {
                guard = self.more.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Waits for another word: awake at first, asleep when none comes for long.
    fn next(&self, seen: u64, index: usize, fetched: &mut Fetched) -> u64 {
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

    /// Runs `work` on so many threads at most, this one among them.
    fn run(&self, workers: usize, work: &(dyn Fn(usize) + Sync)) {
        // As long as `lead` is held it stays.
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
        let (mut look, mut fetched) = (0, Fetched::default());
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

/// The launch that comes walks through `memory`, of which each thread begins with `share` bytes.
pub(crate) fn begin<T>(walk: &Walk, memory: &[T], share: usize) {
    if let Some(team) = Team::get() {
        team.ahead.begin(walk, memory, share);
    }
}

/// Launches take so many threads at most from now on: as many as the process has cores, where it is kept to fewer of them than it
/// began with. Of more threads each waits for the others to have their turn, awake. Where there were four a core, `check` verified for 69 s, and for 3
/// where there was one.
pub fn keep_to(threads: usize) {
    let set = || MOST.store(threads.max(1), Ordering::SeqCst);
    let Some(Some(team)) = TEAM.get() else { return set() };
    let _lead = locked(&team.lead);
    let _sleep = locked(&team.sleep);
    set();
    team.more.notify_all();
}

/// Runs `work` with the numbers from 0 to `workers` on as many threads, or fewer numbers on fewer threads ([`keep_to`]): it is to do
/// all of the launch whoever takes part. Where another launch has the team, which is so within a
/// launch too, rayon's threads do it.
pub(crate) fn run(workers: usize, work: &(dyn Fn(usize) + Sync)) {
    let team = Team::get().filter(|team| workers <= team.threads);
    if let Some(team) = team {
        let lead = match team.lead.try_lock() {
            Ok(lead) => Some(lead),
            // A launch that panicked has left the team as it found it.
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

    /// As many threads as the team has, two where it has one.
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
    fn launches_within_launches_and_beside_each_other() {
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
