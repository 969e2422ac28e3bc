//! Decoding steps in flight: the device goes from one to the next without waiting for the host, which delivers the tokens of each step
//! when that step ends.
//!
//! While no request comes and none ends, each scheduler step launches another one and takes the oldest. Before anything else is done with
//! a sequence, all of them are taken.

use super::{Event, RequestId, Scheduler};
use crate::{Batch, ModelError};
use std::time::Instant;

/// Steps that the engine has launched and whose tokens have not been taken.
#[derive(Default)]
pub(super) struct UnderWay {
    /// The requests, in the order of the batch.
    who: Vec<RequestId>,
    /// Steps in flight; each chooses one token of each request.
    steps: usize,
    /// Most steps in flight.
    most: usize,
    /// When the engine began with the oldest.
    began: Option<Instant>,
}

impl UnderWay {
    pub(super) fn is_empty(&self) -> bool {
        self.steps == 0
    }
}

impl Scheduler<'_> {
    /// Takes the oldest step in flight, where there is one; whether that was this step's work.
    pub(super) fn goes_on(&mut self, events: &mut Vec<Event>) -> Result<bool, ModelError> {
        if self.under_way.is_empty() {
            return Ok(false);
        }
        let waits = !self.waiting.is_empty() || !self.embeddings.is_empty();
        if !waits && self.running().eq(self.under_way.who.iter().copied()) {
            self.fill_up()?;
        }
        self.take_oldest(events)?;
        Ok(true)
    }

    /// Launches up to `most` steps of those that decode, by their places among those that run, and takes the first; whether the engine
    /// can.
    pub(super) fn begin_ahead(
        &mut self,
        (batch, who): (&Batch, &[usize]),
        most: usize,
        events: &mut Vec<Event>,
    ) -> Result<bool, ModelError> {
        let began = Instant::now();
        let how: Vec<_> = who.iter().map(|at| Some(self.running[*at].choice())).collect();
        if !self.engine.begin_choosing(batch, &how, true)? {
            return Ok(false);
        }
        let who = who.iter().map(|at| self.running[*at].id).collect();
        self.under_way = UnderWay { who, steps: 1, most, began: Some(began) };
        self.fill_up()?;
        self.take_oldest(events)?;
        Ok(true)
    }

    /// Waits for tokens that are not wanted.
    pub(super) fn forget_under_way(&mut self) {
        while self.under_way.steps > 0 {
            self.under_way.steps -= 1;
            // An engine that failed has nothing more to tell.
            let _ = self.engine.chosen();
        }
    }

    /// Launches steps until there are as many in flight as there may be, or a request ends there by its length.
    fn fill_up(&mut self) -> Result<(), ModelError> {
        let least = self.running.iter().map(|live| live.ahead()).min().unwrap_or(0);
        while self.under_way.steps < self.under_way.most.min(least) {
            if !self.engine.choose_more(least > self.under_way.steps + 1)? {
                break;
            }
            self.under_way.steps += 1;
        }
        Ok(())
    }

    /// Waits for the oldest step, and delivers its tokens.
    fn take_oldest(&mut self, events: &mut Vec<Event>) -> Result<(), ModelError> {
        let drawn = self.engine.chosen()?;
        self.under_way.steps = self.under_way.steps.saturating_sub(1);
        let now = Instant::now();
        if let Some(began) = self.under_way.began.replace(now) {
            self.pace.decoded(now - began, 1);
        }
        let mut chosen = Vec::new();
        for (id, drawn) in self.under_way.who.iter().zip(drawn) {
            // A request that has gone has no tokens.
            let Some(at) = self.running.iter().position(|live| live.id == *id) else { continue };
            self.running[at].advance(drawn.tokens.len());
            self.stepped += drawn.tokens.len();
            chosen.extend(drawn.tokens.into_iter().map(|token| (at, token, None)));
        }
        self.take(&chosen, events);
        Ok(())
    }
}
