//! Swapping: preempted requests and evicted snapshots move to host memory and back.

use super::copy_cost::{CopyCost, pays_to_restore};
use super::prefixes::PrefixMatch;
use super::{ActiveRequest, Scheduler};
use crate::{ModelError, SavedSequence};
use std::time::{Duration, Instant};

/// Maximum bytes copied per step for snapshots: some milliseconds of a GPU's link.
const MAX_BYTES_PER_STEP: u64 = 256 << 20;

/// Host memory for sequences.
#[derive(Debug, Default)]
pub(super) struct Swap {
    /// Maximum bytes of copies.
    most: u64,
    /// Bytes copied in this step.
    copied: u64,
    /// Time to start this step's copies. The device's time for them shows in later passes.
    took: Duration,
    /// Cost and gain of copying snapshots.
    cost: CopyCost,
}

impl Swap {
    pub(super) fn space(&self) -> u64 {
        self.most
    }

    /// Starts a step.
    pub(super) fn begin(&mut self) {
        (self.copied, self.took) = (0, Duration::ZERO);
    }

    /// Time by which this step's copies have delayed the next passes.
    pub(super) fn took(&self) -> Duration {
        self.took
    }

    /// Whether this step may copy more bytes. The first copy of a step is always allowed.
    pub(super) fn has_time(&self, bytes: u64) -> bool {
        self.copied == 0 || self.copied + bytes <= MAX_BYTES_PER_STEP
    }

    pub(super) fn count(&mut self, bytes: u64) {
        self.copied += bytes;
    }
}

impl Scheduler<'_> {
    /// Sets the host memory for preempted requests, which then resume from their copies, and for evicted snapshots.
    ///
    /// # Errors
    /// [`ModelError`] when the engine has no memory for copies.
    pub fn set_swap_space(&mut self, bytes: u64) -> Result<(), ModelError> {
        self.engine.reserve(bytes)?;
        self.swap.most = bytes;
        Ok(())
    }

    /// Bytes of preempted requests on the host.
    pub(super) fn preempted_bytes(&self) -> u64 {
        self.waiting.iter().filter_map(|live| live.saved.as_ref()).map(SavedSequence::bytes).sum()
    }

    /// Copies the sequence of a slot to the host, replacing snapshots of less value; `None` if there is no room or
    /// copying fails.
    fn save(&mut self, slot: usize, worth: f64) -> Option<SavedSequence> {
        let bytes = self.engine.bytes_to_save(self.engine.len(slot));
        if bytes > self.swap.most {
            return None;
        }
        while self.preempted_bytes() + self.prefixes.saved().1 + bytes > self.swap.most {
            if !self.prefixes.evict_least_copy(worth) {
                return None;
            }
        }
        let began = Instant::now();
        // If the device fails here, the next step fails too and reports it.
        let saved = self.engine.save(slot).ok()?;
        self.swap.count(bytes);
        self.swap.took += began.elapsed();
        Some(saved)
    }

    /// Copies a request's sequence to the host, if there is room, before its slot is freed.
    pub(super) fn save_request(&mut self, live: &mut ActiveRequest) {
        if live.read() > 0 {
            live.saved = self.save(live.slot, f64::INFINITY);
        }
    }

    /// Evicts a snapshot from its slot. It is copied to the host if no work waits for that, if swapping it in is faster
    /// than recomputing its tokens, and if copies have paid off recently.
    pub(super) fn evict(&mut self, end: u64) {
        if let Some(slot) = self.prefixes.slot(end)
            && self.prefixes.copy(end).is_none()
        {
            let bytes = self.engine.bytes_to_save(self.engine.len(slot));
            let rate = self.engine.bytes_per_second();
            if self.swap.most >= bytes
                && self.swap.has_time(bytes)
                && self.engine.can_save(slot)
                && pays_to_restore(bytes, rate, self.prefixes.saves(end), self.pace.reading())
                && self.swap.cost.pays_to_save(rate)
                && let Some(saved) = self.save(slot, self.prefixes.worth_on_host(end))
            {
                self.swap.cost.saved(bytes, rate);
                self.prefixes.add_copy(end, saved);
            }
        }
        self.leave_snapshot(end);
    }

    /// Whether swapping in a snapshot is faster than prefilling the tokens that it saves.
    pub(super) fn pays_to_restore(&self, found: PrefixMatch, saves: usize) -> bool {
        let bytes = self.prefixes.copy(found.end).map_or(0, SavedSequence::bytes);
        pays_to_restore(bytes, self.engine.bytes_per_second(), saves, self.pace.reading())
    }

    /// Swaps in a request's sequence to its empty slot; returns whether that succeeded.
    pub(super) fn restore_request(&mut self, live: &mut ActiveRequest) -> bool {
        let Some(saved) = live.saved.take() else { return false };
        self.swap.count(saved.bytes());
        let restored = self.engine.restore(&saved, live.slot).is_ok();
        if !restored {
            self.engine.reset(live.slot);
        }
        restored
    }

    /// Swaps in a snapshot that saves `saves` tokens. It is dropped if that fails.
    pub(super) fn restore_snapshot(&mut self, (end, saves): (u64, usize), slot: usize) -> bool {
        let Some(saved) = self.prefixes.copy(end) else { return false };
        self.swap.count(saved.bytes());
        let restored = self.engine.restore(saved, slot).is_ok();
        if restored {
            self.swap.cost.record_restore(saves, self.pace.reading());
        } else {
            self.engine.reset(slot);
            self.prefixes.drop_copy(end);
        }
        restored
    }

    /// Lets requests whose copies have arrived take part in the next step. If nothing else runs, all do, and the device
    /// waits. Their snapshots have a slot again.
    pub(super) fn arrive(&mut self) -> Result<(), ModelError> {
        let others = self.running.iter().any(|live| !live.arriving);
        for at in 0..self.running.len() {
            let ActiveRequest { arriving: true, slot, .. } = self.running[at] else { continue };
            if self.engine.has_arrived(slot) || !others {
                self.running[at].arriving = false;
                self.snapshot(at)?;
            }
        }
        Ok(())
    }
}
