use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How often one kernel ran and over how many blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaunchRecord {
    /// Launches.
    pub count: u64,
    /// Blocks that ran to completion, all launches together. On a GPU, blocks of the launches that the driver accepted.
    pub blocks: u64,
    /// Grid of the last launch.
    pub grid: [u32; 3],
}

/// Launch counters of a device, by kernel name. They are incremented only where blocks run, so a kernel that was
/// selected but not run, or replaced by a fallback, has no launch.
#[derive(Debug, Default)]
pub struct Launches {
    by_kernel: Mutex<BTreeMap<String, LaunchRecord>>,
    watched: Mutex<()>,
}

impl Launches {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, LaunchRecord>> {
        // A panic inside a kernel must not hide the launches counted before it.
        self.by_kernel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn record(&self, kernel: &str, blocks: u64) {
        self.add(kernel, blocks, [u32::try_from(blocks).unwrap_or(u32::MAX), 1, 1]);
    }

    pub(crate) fn record_grid(&self, kernel: &str, grid: [u32; 3]) {
        self.add(kernel, grid.iter().map(|size| u64::from(*size)).product(), grid);
    }

    fn add(&self, kernel: &str, blocks: u64, grid: [u32; 3]) {
        let mut by_kernel = self.lock();
        // Nearly every launch has a known name and needs no allocation.
        if !by_kernel.contains_key(kernel) {
            by_kernel.insert(kernel.to_owned(), LaunchRecord::default());
        }
        let Some(record) = by_kernel.get_mut(kernel) else { return };
        record.count += 1;
        record.blocks += blocks;
        record.grid = grid;
    }

    /// Runs a function and counts its launches of a kernel. Concurrent calls wait for each other, so that none counts
    /// another's launches.
    pub fn during<R>(&self, kernel: &str, run: impl FnOnce() -> R) -> (R, u64) {
        let _alone = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.of(kernel).count;
        let ran = run();
        (ran, self.of(kernel).count - before)
    }

    /// The record of one kernel; zero if it never ran.
    pub fn of(&self, kernel: &str) -> LaunchRecord {
        self.lock().get(kernel).copied().unwrap_or_default()
    }

    /// Every kernel that ran, by name.
    pub fn snapshot(&self) -> BTreeMap<String, LaunchRecord> {
        self.lock().clone()
    }
}
