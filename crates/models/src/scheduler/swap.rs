//! What leaves the engine for the host's memory, and comes back: preempted requests, and snapshots that lose their slots.

use super::copy_cost::{CopyCost, pays_to_bring};
use super::prefixes::Found;
use super::{Live, Scheduler};
use crate::{ModelError, Saved};
use std::time::{Duration, Instant};

/// Bytes that are copied in a step besides what has to be: some milliseconds of the link to a GPU.
const A_STEP: u64 = 256 << 20;

/// The host's memory for sequences.
#[derive(Debug, Default)]
pub(super) struct Swap {
    /// Bytes that copies may take.
    most: u64,
    /// Bytes that were copied in this step.
    copied: u64,
    /// How long this step's copies took to begin. What the device takes for them shows in the passes behind them.
    took: Duration,
    /// What copies of snapshots cost and gain.
    cost: CopyCost,
}

impl Swap {
    pub(super) fn space(&self) -> u64 {
        self.most
    }

    /// A step begins.
    pub(super) fn begin(&mut self) {
        (self.copied, self.took) = (0, Duration::ZERO);
    }

    /// How long this step's copies have held up the passes behind them.
    pub(super) fn took(&self) -> Duration {
        self.took
    }

    /// Whether so many bytes may be copied too in this step. The first may, however many they are.
    pub(super) fn has_time(&self, bytes: u64) -> bool {
        self.copied == 0 || self.copied + bytes <= A_STEP
    }

    pub(super) fn count(&mut self, bytes: u64) {
        self.copied += bytes;
    }
}

impl Scheduler<'_> {
    /// Gives preempted requests, which then go on from where they were, and snapshots that lose their slots so many bytes of the
    /// host's memory.
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
        self.waiting.iter().filter_map(|live| live.saved.as_ref()).map(Saved::bytes).sum()
    }

    /// Copies the sequence of a slot to the host, in place of copies of snapshots that are worth less; none where there is no
    /// room for it, or it cannot be copied.
    fn save(&mut self, slot: usize, worth: f64) -> Option<Saved> {
        let bytes = self.engine.bytes_to_save(self.engine.len(slot));
        if bytes > self.swap.most {
            return None;
        }
        while self.preempted_bytes() + self.prefixes.saved().1 + bytes > self.swap.most {
            if !self.prefixes.drop_least_copy(worth) {
                return None;
            }
        }
        let began = Instant::now();
        // A device that fails here fails at the next step as well, which says so.
        let saved = self.engine.save(slot).ok()?;
        self.swap.count(bytes);
        self.swap.took += began.elapsed();
        Some(saved)
    }

    /// Copies what the engine has read of a request, where there is room, before its slot goes to somebody else.
    pub(super) fn save_request(&mut self, live: &mut Live) {
        if live.read() > 0 {
            live.saved = self.save(live.slot, f64::INFINITY);
        }
    }

    /// Evicts a snapshot from its slot. It is copied to the host if no work waits for that, if the link brings it back sooner than its
    /// tokens are read again, and if copies have paid lately.
    pub(super) fn evict(&mut self, end: u64) {
        if let Some(slot) = self.prefixes.slot(end)
            && self.prefixes.copy(end).is_none()
        {
            let bytes = self.engine.bytes_to_save(self.engine.len(slot));
            let rate = self.engine.bytes_per_second();
            if self.swap.most >= bytes
                && self.swap.has_time(bytes)
                && self.engine.can_save(slot)
                && pays_to_bring(bytes, rate, self.prefixes.saves(end), self.pace.reading())
                && self.swap.cost.pays_to_save(rate)
                && let Some(saved) = self.save(slot, self.prefixes.worth_on_host(end))
            {
                self.swap.cost.saved(bytes, rate);
                self.prefixes.add_copy(end, saved);
            }
        }
        self.leave_snapshot(end);
    }

    /// Whether a snapshot on the host is there sooner than the tokens are read that it saves.
    pub(super) fn pays_to_bring(&self, found: Found, saves: usize) -> bool {
        let bytes = self.prefixes.copy(found.end).map_or(0, Saved::bytes);
        pays_to_bring(bytes, self.engine.bytes_per_second(), saves, self.pace.reading())
    }

    /// Brings a request's own sequence back to its slot, which is empty; whether that succeeded.
    pub(super) fn restore_request(&mut self, live: &mut Live) -> bool {
        let Some(saved) = live.saved.take() else { return false };
        self.swap.count(saved.bytes());
        let restored = self.engine.restore(&saved, live.slot).is_ok();
        if !restored {
            self.engine.reset(live.slot);
        }
        restored
    }

    /// The same of a snapshot that saves so many tokens. It is forgotten where it cannot be brought back.
    pub(super) fn restore_snapshot(&mut self, (end, saves): (u64, usize), slot: usize) -> bool {
        let Some(saved) = self.prefixes.copy(end) else { return false };
        self.swap.count(saved.bytes());
        let restored = self.engine.restore(saved, slot).is_ok();
        if restored {
            self.swap.cost.brought(saves, self.pace.reading());
        } else {
            self.engine.reset(slot);
            self.prefixes.drop_copy(end);
        }
        restored
    }

    /// Lets those whose copies from the host are there take part in the next step. Where nothing else runs they do in any case, and the
    /// device waits. What was a snapshot has a slot again.
    pub(super) fn arrive(&mut self) -> Result<(), ModelError> {
        let others = self.running.iter().any(|live| !live.arriving);
        for at in 0..self.running.len() {
            let Live { arriving: true, slot, .. } = self.running[at] else { continue };
            if self.engine.has_arrived(slot) || !others {
                self.running[at].arriving = false;
                self.snapshot(at)?;
            }
        }
        Ok(())
    }
}
