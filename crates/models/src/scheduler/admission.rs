//! Who has a slot, and who gives it or its pages away.

use super::{Event, Live, Scheduler};
use crate::ModelError;

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
            let goes_on = |tokens: &[u32]| !first.reads_anew() && first.goes_on_from(tokens);
            let known = self.kept.longest(goes_on);
            let kept = known.and_then(|at| self.kept.get(at));
            let place = kept.map(|kept| (kept.slot, kept.tokens.len()));
            let Some((slot, kept)) = place.or(self.free_slots.last().map(|slot| (*slot, 0))) else {
                if self.give_way(None) {
                    continue;
                }
                break;
            };
            let found = if known.is_none() { self.prefixes.longest(first) } else { None };
            let read = found.map_or(kept, |found| found.read);
            let least = read + self.prefixes.worth();
            // Somebody reads the same just now: what it leaves is waited for.
            if self.running.iter_mut().any(|live| live.joins(first, least)) {
                break;
            }
            let from = found.map_or(slot, |found| found.slot);
            let wanted = self.engine.pages().lacking(from, first.tokens() + 1 - read);
            if promised + wanted > self.free_blocks() {
                if self.give_way(known) {
                    continue;
                }
                // One that runs alone has all pages, which are enough for it.
                if !self.running.is_empty() {
                    break;
                }
            }
            promised += wanted;
            let Some(mut live) = self.waiting.pop_front() else { break };
            let lost = match kept {
                0 => self.prefixes.begin(&mut live, found),
                kept => {
                    live.begin_behind(kept, Vec::new());
                    0
                }
            };
            match known {
                Some(at) => drop(self.kept.take(at)),
                None => drop(self.free_slots.pop()),
            }
            live.slot = slot;
            events.push(Event::Begun { request: live.id, reused: read, lost });
            self.running.push(live);
            if let Some(found) = found {
                self.engine.fork(found.slot, slot, false)?;
            }
        }
        Ok(())
    }

    /// Keeps the state of a request that runs, by its place among these, where it has just read what others may begin with.
    pub(super) fn snapshot(&mut self, at: usize) -> Result<(), ModelError> {
        let Some(end) = self.running[at].at_mark() else { return Ok(()) };
        if self.prefixes.has(end) {
            return Ok(());
        }
        if self.prefixes.is_full()
            && let Some(slot) = self.prefixes.least(self.engine.pages(), false)
        {
            self.free(slot);
        }
        let Some(slot) = self.free_slots.pop() else { return Ok(()) };
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
        let kept = self.kept.oldest(but).map(|kept| kept.slot);
        let slot = kept.or_else(|| self.prefixes.least(self.engine.pages(), true));
        slot.map(|slot| self.free(slot)).is_some()
    }

    /// Gives back every slot that no request has.
    pub(super) fn drop_all(&mut self) {
        while let Some(kept) = self.kept.oldest(None) {
            self.free(kept.slot);
        }
        self.drop_snapshots();
    }

    /// Gives back every slot that has a snapshot.
    pub(super) fn drop_snapshots(&mut self) {
        while let Some(slot) = self.prefixes.least(self.engine.pages(), false) {
            self.free(slot);
        }
    }

    /// Sends a request that runs no more back to those that wait.
    pub(super) fn preempt(&mut self, mut live: Live, events: &mut Vec<Event>) {
        self.free(live.slot);
        live.forget();
        events.push(Event::Preempted { request: live.id });
        let older = self.waiting.partition_point(|other| other.id < live.id);
        self.waiting.insert(older, live);
    }

    /// Gives back a slot, and the pages of its sequence.
    pub(super) fn free(&mut self, slot: usize) {
        self.engine.reset(slot);
        self.free_slots.push(slot);
    }

    /// Blocks that are wanted for so many more tokens of each request that runs.
    pub(super) fn lacking(&self, tokens: impl Fn(&Live) -> usize) -> usize {
        let pages = self.engine.pages();
        self.running.iter().map(|live| pages.lacking(live.slot, tokens(live))).sum()
    }
}
