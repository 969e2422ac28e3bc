//! The ends of turns: what a conversation's next message is read behind.
//!
//! The token that ends an answer is chosen and never read, nor is the last one of an answer that is as long as it may be: that would
//! take a step for every answer. It is read with the next message, whose prompt has it too. Nor is anything read behind these: a device
//! that chooses several tokens at once knows which of them end a sequence.

use super::{Ended, Live, Scheduler};

impl Scheduler<'_> {
    /// Ends the use of its slot by a request that ended so. The state behind a turn stays in it.
    pub(super) fn end(&mut self, live: &Live, ended: Ended) {
        let turn = live.is_turn() && matches!(ended, Ended::StopId | Ended::Limit);
        if !(turn && self.keep_turn(live)) {
            self.leave(live);
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
}
