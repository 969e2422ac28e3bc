//! The pass that prefills prompts and decodes in the same step.

use super::{Scheduler, SchedulerEvent};
use crate::pages::BLOCK;
use crate::{Batch, ModelError};
use std::time::Instant;

impl Scheduler<'_> {
    /// Number of tokens that a running request, given by index, can prefill if others take `taken` blocks. Evicts
    /// snapshots and preempts younger requests until it is at least one; 0 if that is impossible.
    pub(super) fn room_for(
        &mut self,
        at: usize,
        taken: usize,
        events: &mut Vec<SchedulerEvent>,
    ) -> usize {
        loop {
            let Some(live) = self.running.get(at) else { return 0 };
            let pages = self.engine.pages();
            let held = pages.len(live.slot);
            let free = pages.free_blocks().saturating_sub(taken);
            let room = held.next_multiple_of(BLOCK) - held + free * BLOCK;
            if room > 0 {
                return room;
            }
            if self.evict_one(None) {
                continue;
            }
            // Without a younger request it waits until an older one ends.
            if self.running.len() <= at + 1 {
                return 0;
            }
            if let Some(youngest) = self.running.pop() {
                self.preempt(youngest, events);
            }
        }
    }

    /// Prefills up to `room` prompt tokens, oldest request first, and decodes one token of each decoding sequence.
    pub(super) fn read(
        &mut self,
        room: usize,
        events: &mut Vec<SchedulerEvent>,
    ) -> Result<(), ModelError> {
        let (mut left, mut prefills) = (room, Vec::new());
        let mut taken = self.blocks_needed(|live| usize::from(live.decodes()));
        let mut at = 0;
        while at < self.running.len() && left > 0 {
            let live = &self.running[at];
            if !live.prefills() {
                at += 1;
                continue;
            }
            let room = self.room_for(at, taken, events);
            let Some(live) = self.running.get(at).filter(|_| room > 0) else { break };
            let pages = self.engine.pages();
            let count = live.readable().min(left).min(room);
            taken += pages.blocks_needed(live.slot, count);
            prefills.push((at, count));
            left -= count;
            at += 1;
        }
        // Computed after the prompts, which may have preempted the youngest; in the pass decoding sequences are first.
        let decode = self.decoding();
        let decoding = decode.len();
        let decode = decode.into_iter().map(|at| (at, 1));
        let who: Vec<(usize, usize)> = decode.chain(prefills.iter().copied()).collect();
        let mut batch = Batch::new();
        for (at, count) in &who {
            let live = &self.running[*at];
            batch.add(live.slot, live.next(*count));
        }
        if batch.is_empty() {
            return Ok(());
        }
        let (tokens, began) = (prefills.iter().map(|(_, count)| count).sum(), Instant::now());
        self.advance(&batch, who, 1, events)?;
        self.pace.read(began.elapsed(), tokens, room, decoding);
        Ok(())
    }
}
