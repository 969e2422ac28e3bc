//! Admission, preemption and eviction.

use super::prefixes::PrefixMatch;
use super::{ActiveRequest, Scheduler, SchedulerEvent};
use crate::ModelError;
use crate::pages::BLOCK;

/// How a request starts.
#[derive(Debug, Clone, Copy)]
enum Start {
    /// From its first token.
    FirstToken,
    /// After a kept sequence, given by index, in its slot.
    KeptSequence(usize),
    /// From a snapshot in this slot.
    Fork(PrefixMatch, usize),
    /// From a snapshot on the host that saves this many tokens compared with snapshots in slots.
    Copy(PrefixMatch, usize),
    /// From its own copy on the host.
    OwnCopy,
}

impl Scheduler<'_> {
    /// Preempts the youngest request until each decoding sequence can have one more token.
    pub(super) fn make_room(&mut self, events: &mut Vec<SchedulerEvent>) {
        while self.blocks_needed(|live| if live.decodes() { 1 } else { 0 }) > self.free_blocks() {
            if self.evict_one(None) {
                continue;
            }
            let Some(youngest) = self.running.pop() else { break };
            self.preempt(youngest, events);
        }
    }

    /// Gives slots to waiting requests in order, as long as there are blocks for all of their known tokens.
    pub(super) fn admit(&mut self, events: &mut Vec<SchedulerEvent>) -> Result<(), ModelError> {
        if let Some(alone) = self.alone {
            self.admit_alone(alone);
            return Ok(());
        }
        let mut promised = self.blocks_needed(ActiveRequest::pending_tokens);
        while let Some(first) = self.waiting.front()
            && self.running.len() < self.slots
        {
            let start = self.start(first);
            let place = match start {
                Start::KeptSequence(at) => self.kept.get(at).map(|kept| kept.slot),
                _ => self.free_slots.first().copied(),
            };
            let Some(slot) = place else {
                if self.evict_one(None) {
                    continue;
                }
                break;
            };
            let pages = self.engine.pages();
            let (read, on_host) = match start {
                Start::FirstToken => (0, None),
                Start::KeptSequence(_) => (pages.len(slot), None),
                Start::Fork(found, _) => (found.read, None),
                Start::Copy(found, _) => (found.read, self.prefixes.copy(found.end)),
                Start::OwnCopy => (first.read(), first.saved.as_ref()),
            };
            let least = read + self.prefixes.min_snapshot_tokens();
            // A running request prefills the same tokens; wait for its snapshot.
            let own = matches!(start, Start::OwnCopy);
            if !own && self.running.iter_mut().any(|live| live.joins(first, least)) {
                break;
            }
            if on_host.is_some_and(|copy| !self.swap.has_time(copy.bytes())) {
                break;
            }
            let from = if let Start::Fork(_, from) = start { from } else { slot };
            let begun = pages.len(from);
            // A partly filled block is copied.
            let copied = from != slot && !begun.is_multiple_of(BLOCK);
            let wanted =
                pages.blocks_needed(from, first.tokens() + 1 - begun) + usize::from(copied);
            if promised + wanted > self.free_blocks() {
                let but = if let Start::KeptSequence(at) = start { Some(at) } else { None };
                if self.evict_one(but) {
                    continue;
                }
                // A request that runs alone may use all blocks, which suffice for it.
                if !self.running.is_empty() {
                    break;
                }
            }
            promised += wanted;
            let Some(mut live) = self.waiting.pop_front() else { break };
            match start {
                Start::KeptSequence(at) => drop(self.kept.take(at)),
                _ => drop(self.free_slots.pop_first()),
            }
            live.slot = slot;
            let start = self.swap_in(&mut live, start);
            let lost = match start {
                Start::KeptSequence(_) => {
                    live.start_after(read, Vec::new());
                    0
                }
                Start::OwnCopy => 0,
                Start::FirstToken => self.prefixes.begin(&mut live, None),
                Start::Fork(found, _) | Start::Copy(found, _) => {
                    self.prefixes.begin(&mut live, Some(found))
                }
            };
            let (request, reused) = (live.id, live.read());
            events.push(SchedulerEvent::Begun { request, reused, from_host: live.arriving, lost });
            self.running.push(live);
            if let Start::Fork(_, from) = start {
                self.engine.fork(from, slot, false)?;
            }
        }
        Ok(())
    }

    /// How a waiting request starts.
    fn start(&self, live: &ActiveRequest) -> Start {
        if live.saved.is_some() {
            return Start::OwnCopy;
        }
        if live.bypasses_cache() {
            return Start::FirstToken;
        }
        if let Some(at) = self.kept.longest(|tokens| live.continues_from(tokens)) {
            return Start::KeptSequence(at);
        }
        let fork = |found: PrefixMatch| found.slot.map(|slot| Start::Fork(found, slot));
        match self.prefixes.longest(live, false) {
            Some(found) if found.slot.is_none() => {
                let here = self.prefixes.longest(live, true);
                let saves = found.read - here.map_or(0, |here| here.read);
                match self.pays_to_restore(found, saves) {
                    true => Start::Copy(found, saves),
                    false => here.and_then(fork).unwrap_or(Start::FirstToken),
                }
            }
            found => found.and_then(fork).unwrap_or(Start::FirstToken),
        }
    }

    /// Swaps in the state from which a request starts, if it is on the host. If that fails, the tokens are recomputed.
    fn swap_in(&mut self, live: &mut ActiveRequest, start: Start) -> Start {
        live.arriving = match start {
            Start::Copy(found, saves) => self.restore_snapshot((found.end, saves), live.slot),
            Start::OwnCopy => self.restore_request(live),
            _ => return start,
        };
        if live.arriving {
            return start;
        }
        live.release_slot();
        Start::FirstToken
    }

    /// Snapshots the state of a running request, given by index, if it has just prefilled a prefix that other requests
    /// may share.
    pub(super) fn snapshot(&mut self, at: usize) -> Result<(), ModelError> {
        let Some(end) = self.running[at].hash_at_snapshot() else { return Ok(()) };
        if self.prefixes.has(end) {
            return Ok(());
        }
        if self.prefixes.is_full()
            && let Some(least) = self.prefixes.least(self.engine.pages(), false)
        {
            self.evict(least);
        }
        let Some(slot) = self.free_slots.pop_last() else { return Ok(()) };
        let live = &self.running[at];
        self.prefixes.add(end, slot, live);
        self.engine.fork(live.slot, slot, true)
    }

    /// Releases a request's slot, or keeps the finished sequence in it.
    pub(super) fn leave(&mut self, live: &ActiveRequest) {
        match live.to_keep() {
            Some(tokens) => self.kept.add(live.slot, tokens),
            None => self.free(live.slot),
        }
    }

    /// Evicts the oldest kept sequence, except the one with index `but`, or a snapshot that has blocks for itself;
    /// false if there is none.
    pub(super) fn evict_one(&mut self, but: Option<usize>) -> bool {
        if let Some(kept) = self.kept.oldest(but) {
            self.free(kept.slot);
            return true;
        }
        let least = self.prefixes.least(self.engine.pages(), true);
        least.map(|end| self.evict(end)).is_some()
    }

    /// Evicts everything that no request uses.
    pub(super) fn drop_all(&mut self) {
        while let Some(kept) = self.kept.oldest(None) {
            self.free(kept.slot);
        }
        self.drop_snapshots();
    }

    /// Evicts every snapshot from its slot. Copies on the host stay.
    pub(super) fn drop_snapshots(&mut self) {
        while let Some(end) = self.prefixes.least(self.engine.pages(), false) {
            self.leave_snapshot(end);
        }
    }

    /// Frees the slot of a snapshot.
    pub(super) fn leave_snapshot(&mut self, end: u64) {
        if let Some(slot) = self.prefixes.leave(end) {
            self.free(slot);
        }
    }

    /// Preempts a request, saving its state to the host if there is room.
    pub(super) fn preempt(&mut self, mut live: ActiveRequest, events: &mut Vec<SchedulerEvent>) {
        self.save_request(&mut live);
        self.requeue(live, events);
    }

    /// Puts a request that lost its slot back into the queue.
    pub(super) fn requeue(&mut self, mut live: ActiveRequest, events: &mut Vec<SchedulerEvent>) {
        self.free(live.slot);
        live.release_slot();
        events.push(SchedulerEvent::Preempted { request: live.id, saved: live.saved.is_some() });
        let older = self.waiting.partition_point(|other| other.id < live.id);
        self.waiting.insert(older, live);
    }

    /// Frees a slot and the blocks of its sequence.
    pub(super) fn free(&mut self, slot: usize) {
        self.engine.reset(slot);
        self.free_slots.insert(slot);
    }

    /// Blocks needed for a number of tokens of each running request.
    pub(super) fn blocks_needed(&self, tokens: impl Fn(&ActiveRequest) -> usize) -> usize {
        let pages = self.engine.pages();
        self.running.iter().map(|live| pages.blocks_needed(live.slot, tokens(live))).sum()
    }
}
