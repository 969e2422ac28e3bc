//! Snapshots at the end of turns, from which a conversation's next message continues.
//!
//! The token that ends an answer is sampled but never read, and neither is the last token of an answer that reaches its
//! limit: reading it would take a step for every answer. It is prefilled with the next message, whose prompt contains
//! it. Nothing beyond these tokens is read either: a device that samples several tokens in a row knows the stop tokens.

use super::{ActiveRequest, FinishReason, Scheduler};

impl Scheduler<'_> {
    /// Releases the slot of a request that ended. The state at the end of a turn stays in it.
    pub(super) fn end(&mut self, live: &ActiveRequest, ended: FinishReason) {
        let turn = live.is_turn() && matches!(ended, FinishReason::StopId | FinishReason::Limit);
        if !(turn && self.keep_turn(live)) {
            self.leave(live);
        }
    }

    /// Turns the slot of a request into a snapshot, replacing the one of least value; returns whether it did.
    fn keep_turn(&mut self, live: &ActiveRequest) -> bool {
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
