//! Who has a slot, and who gives it or its pages away.

use super::prefixes::Found;
use super::{Event, Live, Scheduler};
use crate::ModelError;
use crate::pages::BLOCK;

/// Where a request begins.
#[derive(Debug, Clone, Copy)]
enum Start {
    /// With its first token.
    Anew,
    /// Behind a kept sequence, by its place, and in its slot.
    Kept(usize),
    /// Behind a snapshot, in this slot.
    Fork(Found, usize),
    /// Behind a snapshot that is on the host, which saves so many tokens compared with what has a slot.
    Copy(Found, usize),
    /// Behind what it had read itself, which is on the host.
    Own,
}

impl Scheduler<'_> {
    /// Preempts the youngest until each sequence that decodes can have one more token.
    pub(super) fn make_room(&mut self, events: &mut Vec<Event>) {
        while self.lacking(|live| if live.decodes() { 1 } else { 0 }) > self.free_blocks() {
            if self.give_way(None) {
                continue;
            }
            let Some(youngest) = self.running.pop() else { break };
            self.preempt(youngest, events);
        }
    }

    /// Gives slots to the requests that wait, in their order, as long as there are pages for all that is known of them.
    pub(super) fn admit(&mut self, events: &mut Vec<Event>) -> Result<(), ModelError> {
        if let Some(alone) = self.alone {
            self.admit_alone(alone);
            return Ok(());
        }
        let mut promised = self.lacking(Live::unread);
        while let Some(first) = self.waiting.front()
            && self.running.len() < self.slots
        {
            let start = self.start(first);
            let place = match start {
                Start::Kept(at) => self.kept.get(at).map(|kept| kept.slot),
                _ => self.free_slots.first().copied(),
            };
            let Some(slot) = place else {
                if self.give_way(None) {
                    continue;
                }
                break;
            };
            let pages = self.engine.pages();
            let (read, on_host) = match start {
                Start::Anew => (0, None),
                Start::Kept(_) => (pages.len(slot), None),
                Start::Fork(found, _) => (found.read, None),
                Start::Copy(found, _) => (found.read, self.prefixes.copy(found.end)),
                Start::Own => (first.read(), first.saved.as_ref()),
            };
            let least = read + self.prefixes.worth();
            // Somebody reads the same just now: what it leaves is waited for.
            let own = matches!(start, Start::Own);
            if !own && self.running.iter_mut().any(|live| live.joins(first, least)) {
                break;
            }
            if on_host.is_some_and(|copy| !self.swap.has_time(copy.bytes())) {
                break;
            }
            let from = if let Start::Fork(_, from) = start { from } else { slot };
            let begun = pages.len(from);
            // Of a block that is not full each has its own.
            let copied = from != slot && !begun.is_multiple_of(BLOCK);
            let wanted = pages.lacking(from, first.tokens() + 1 - begun) + usize::from(copied);
            if promised + wanted > self.free_blocks() {
                let but = if let Start::Kept(at) = start { Some(at) } else { None };
                if self.give_way(but) {
                    continue;
                }
                // One that runs alone has all pages, which are enough for it.
                if !self.running.is_empty() {
                    break;
                }
            }
            promised += wanted;
            let Some(mut live) = self.waiting.pop_front() else { break };
            match start {
                Start::Kept(at) => drop(self.kept.take(at)),
                _ => drop(self.free_slots.pop_first()),
            }
            live.slot = slot;
            let start = self.brought(&mut live, start);
            let lost = match start {
                Start::Kept(_) => {
                    live.begin_behind(read, Vec::new());
                    0
                }
                Start::Own => 0,
                Start::Anew => self.prefixes.begin(&mut live, None),
                Start::Fork(found, _) | Start::Copy(found, _) => {
                    self.prefixes.begin(&mut live, Some(found))
                }
            };
            let (request, reused) = (live.id, live.read());
            events.push(Event::Begun { request, reused, from_host: live.arriving, lost });
            self.running.push(live);
            if let Start::Fork(_, from) = start {
                self.engine.fork(from, slot, false)?;
            }
        }
        Ok(())
    }

    /// Where a request begins that waits.
    fn start(&self, live: &Live) -> Start {
        if live.saved.is_some() {
            return Start::Own;
        }
        if live.reads_anew() {
            return Start::Anew;
        }
        if let Some(at) = self.kept.longest(|tokens| live.goes_on_from(tokens)) {
            return Start::Kept(at);
        }
        let fork = |found: Found| found.slot.map(|slot| Start::Fork(found, slot));
        match self.prefixes.longest(live, false) {
            Some(found) if found.slot.is_none() => {
                let here = self.prefixes.longest(live, true);
                let saves = found.read - here.map_or(0, |here| here.read);
                match self.pays_to_bring(found, saves) {
                    true => Start::Copy(found, saves),
                    false => here.and_then(fork).unwrap_or(Start::Anew),
                }
            }
            found => found.and_then(fork).unwrap_or(Start::Anew),
        }
    }

    /// Brings what a request begins with from the host to its slot, where it is there. What cannot be brought is read again.
    fn brought(&mut self, live: &mut Live, start: Start) -> Start {
        live.arriving = match start {
            Start::Copy(found, saves) => self.restore_snapshot((found.end, saves), live.slot),
            Start::Own => self.restore_request(live),
            _ => return start,
        };
        if live.arriving {
            return start;
        }
        live.lose_slot();
        Start::Anew
    }

    /// Keeps the state of a request that runs, by its place among these, where it has just read what others may begin with.
    pub(super) fn snapshot(&mut self, at: usize) -> Result<(), ModelError> {
        let Some(end) = self.running[at].at_mark() else { return Ok(()) };
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

    /// Ends a request's use of its slot.
    pub(super) fn leave(&mut self, live: &Live) {
        match live.to_keep() {
            Some(tokens) => self.kept.add(live.slot, tokens),
            None => self.free(live.slot),
        }
    }

    /// Gives back the slot that was kept first, but for the one in this place, or a snapshot that has pages of its own; whether
    /// there was such a one.
    pub(super) fn give_way(&mut self, but: Option<usize>) -> bool {
        if let Some(kept) = self.kept.oldest(but) {
            self.free(kept.slot);
            return true;
        }
        let least = self.prefixes.least(self.engine.pages(), true);
        least.map(|end| self.evict(end)).is_some()
    }

    /// Gives back every slot that no request has.
    pub(super) fn drop_all(&mut self) {
        while let Some(kept) = self.kept.oldest(None) {
            self.free(kept.slot);
        }
        self.drop_snapshots();
    }

    /// Gives back every slot that has a snapshot. Copies on the host stay.
    pub(super) fn drop_snapshots(&mut self) {
        while let Some(end) = self.prefixes.least(self.engine.pages(), false) {
            self.leave_snapshot(end);
        }
    }

    /// Gives back the slot of a snapshot.
    pub(super) fn leave_snapshot(&mut self, end: u64) {
        if let Some(slot) = self.prefixes.leave(end) {
            self.free(slot);
        }
    }

    /// Sends a request back to those that wait, with what it has read where the host has room for that.
    pub(super) fn preempt(&mut self, mut live: Live, events: &mut Vec<Event>) {
        self.save_request(&mut live);
        self.send_back(live, events);
    }

    /// Sends a request that runs no more back to those that wait.
    pub(super) fn send_back(&mut self, mut live: Live, events: &mut Vec<Event>) {
        self.free(live.slot);
        live.lose_slot();
        events.push(Event::Preempted { request: live.id, saved: live.saved.is_some() });
        let older = self.waiting.partition_point(|other| other.id < live.id);
        self.waiting.insert(older, live);
    }

    /// Gives back a slot, and the pages of its sequence.
    pub(super) fn free(&mut self, slot: usize) {
        self.engine.reset(slot);
        self.free_slots.insert(slot);
    }

    /// Blocks that are wanted for so many more tokens of each request that runs.
    pub(super) fn lacking(&self, tokens: impl Fn(&Live) -> usize) -> usize {
        let pages = self.engine.pages();
        self.running.iter().map(|live| pages.lacking(live.slot, tokens(live))).sum()
    }
}
