//! The ends of turns: what a conversation's next message is read behind.
//!
//! The token that ends an answer is chosen and never read, nor is the last one of an answer that is as long as it may be: that would
//! take a step for every answer. It is read with the next message, whose prompt has it too.
//!
//! A device that chooses several tokens at once may have read some behind the end. Such a turn is read again up to its end, while nobody
//! waits.

use super::{Ended, Live, Scheduler};
use crate::{Batch, ModelError, Pages};
use std::collections::VecDeque;

/// Turns that wait to be read again, at most: those that ended last.
const MOST: usize = 8;

/// Turns that are read again.
#[derive(Default)]
pub(super) struct Turns {
    due: VecDeque<Live>,
    /// The one that has a slot.
    reading: Option<Live>,
}

impl Scheduler<'_> {
    /// Ends the use of its slot by a request that ended so. The state behind a turn stays in it.
    pub(super) fn end(&mut self, live: &Live, ended: Ended) {
        let turn = live.is_turn() && matches!(ended, Ended::StopId | Ended::Limit);
        if turn && live.is_exact() && self.keep_turn(live) {
            return;
        }
        self.leave(live);
        if turn && !live.is_exact() && self.prefixes.keeps() {
            self.turns.due.truncate(MOST - 1);
            self.turns.due.push_front(live.again());
        }
    }

    /// Lets the slot of a request be a snapshot's, in place of the one that is worth least; whether it is one.
    fn keep_turn(&mut self, live: &Live) -> bool {
        let Some(end) = self.prefixes.turn(live) else { return false };
        if !self.engine.keep(live.slot) {
            return false;
        }
        if self.prefixes.is_full() {
            let Some(least) = self.prefixes.least(self.engine.pages(), false) else { return false };
            self.evict(least);
        }
        self.prefixes.add_turn(end, live.slot, live);
        true
    }

    /// Reads some more of a turn whose end is to be kept; whether there was one.
    pub(super) fn read_turn(&mut self) -> bool {
        if self.turns.reading.is_none() && self.turns.due.is_empty() {
            return false;
        }
        let Some(mut live) = self.turns.reading.take().or_else(|| self.begin_turn()) else {
            return true;
        };
        match self.read_some(&mut live) {
            Ok(()) if live.unread() > 0 => self.turns.reading = Some(live),
            Ok(()) if self.keep_turn(&live) => {}
            Ok(()) => self.free(live.slot),
            Err(_) => {
                self.free(live.slot);
                self.turns.due.clear();
                // The engine may have lost every sequence.
                self.drop_all();
            }
        }
        true
    }

    /// Gives a slot to the turn that ended last. One for which there is none, or no pages, or from which somebody has gone on, is
    /// forgotten.
    fn begin_turn(&mut self) -> Option<Live> {
        let mut live = self.turns.due.pop_front()?;
        if self.prefixes.continues(&live) {
            return None;
        }
        let found = self.prefixes.longest(&live);
        let from = found.and_then(|found| Some((found, found.slot?)));
        // With a block that a copy may take.
        let wanted = Pages::blocks_for(live.tokens()) + 1;
        let slot = if wanted > self.free_blocks() { None } else { self.free_slots.pop() };
        live.slot = slot?;
        if let Some((found, from)) = from {
            live.begin_behind(found.read, Vec::new());
            live.behind = Some(found.end);
            if self.engine.fork(from, live.slot, false).is_err() {
                self.free(live.slot);
                return None;
            }
        }
        Some(live)
    }

    fn read_some(&mut self, live: &mut Live) -> Result<(), ModelError> {
        // Whoever comes waits for no more than others do for a prompt.
        let count = live.unread().min(self.budget.beside.max(1));
        let mut batch = Batch::new();
        batch.add(live.slot, live.next(count));
        self.engine.choose(&batch, &[None], 1)?;
        live.advance(count);
        Ok(())
    }

    /// Gives the slot back of a turn that is read again: somebody wants something. It begins anew afterwards.
    pub(super) fn interrupt_turn(&mut self) {
        if let Some(live) = self.turns.reading.take() {
            self.free(live.slot);
            self.turns.due.push_front(live.again());
        }
    }

    /// Reads no turn again.
    pub(super) fn forget_turns(&mut self) {
        self.interrupt_turn();
        self.turns.due.clear();
    }
}
