//! The pass that reads prompts, and decodes beside that.

use super::{Event, Scheduler};
use crate::pages::BLOCK;
use crate::{Batch, ModelError};
use std::time::Instant;

impl Scheduler<'_> {
    /// So many tokens of prompts, oldest first, and one of each sequence that decodes.
    pub(super) fn read(&mut self, room: usize, events: &mut Vec<Event>) -> Result<(), ModelError> {
        let (mut left, mut reads) = (room, Vec::new());
        let mut taken = self.lacking(|live| usize::from(live.decodes()));
        let mut at = 0;
        while at < self.running.len() && left > 0 {
            let live = &self.running[at];
            if !live.reads() {
                at += 1;
                continue;
            }
            let pages = self.engine.pages();
            let held = pages.len(live.slot);
            let free = pages.free_blocks().saturating_sub(taken);
            let room = held.next_multiple_of(BLOCK) - held + free * BLOCK;
            if room == 0 {
                if self.give_way(None) {
                    continue;
                }
                // Somebody older has to end first, or somebody younger gives way.
                match self.running.pop() {
                    Some(youngest) if self.running.len() > at => self.preempt(youngest, events),
                    Some(this) => {
                        self.running.push(this);
                        break;
                    }
                    None => break,
                }
                continue;
            }
            let count = live.readable().min(left).min(room);
            taken += pages.lacking(live.slot, count);
            reads.push((at, count));
            left -= count;
            at += 1;
        }
        // Behind the prompts' places, for the youngest may have given theirs away; in the pass they come first.
        let decode = self.decoding();
        let decoding = decode.len();
        let decode = decode.into_iter().map(|at| (at, 1));
        let who: Vec<(usize, usize)> = decode.chain(reads.iter().copied()).collect();
        let mut batch = Batch::new();
        for (at, count) in &who {
            let live = &self.running[*at];
            batch.add(live.slot, live.next(*count));
        }
        if batch.is_empty() {
            return Ok(());
        }
        let (tokens, began) = (reads.iter().map(|(_, count)| count).sum(), Instant::now());
        self.advance(&batch, who, 1, events)?;
        self.pace.read(began.elapsed(), tokens, room, decoding);
        Ok(())
    }
}
