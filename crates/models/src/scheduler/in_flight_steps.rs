//! Decoding steps in flight: the device runs one after another without waiting for the host, which delivers the tokens
//! of each step when that step ends.
//!
//! While no request arrives and none ends, each scheduler step launches another decoding step and takes the oldest.
//! Before a sequence is used in another way, all steps in flight are taken.

use super::{RequestId, Scheduler, SchedulerEvent};
use crate::{Batch, ModelError};
use std::time::Instant;

/// Decoding steps that the engine has launched and whose tokens have not been taken.
#[derive(Default)]
pub(super) struct StepsInFlight {
    /// The requests, in the order of the batch.
    who: Vec<RequestId>,
    /// Steps in flight; each samples one token of each request.
    steps: usize,
    /// Maximum steps in flight.
    most: usize,
    /// When the engine started the oldest step.
    began: Option<Instant>,
}

impl StepsInFlight {
    pub(super) fn is_empty(&self) -> bool {
        self.steps == 0
    }
}

impl Scheduler<'_> {
    /// Takes the oldest step in flight; returns whether there was one.
    pub(super) fn take_step_in_flight(
        &mut self,
        events: &mut Vec<SchedulerEvent>,
    ) -> Result<bool, ModelError> {
        if self.in_flight_steps.is_empty() {
            return Ok(false);
        }
        let waits = !self.waiting.is_empty() || !self.embeddings.is_empty();
        if !waits && self.running().eq(self.in_flight_steps.who.iter().copied()) {
            self.fill_up()?;
        }
        self.take_oldest(events)?;
        Ok(true)
    }

    /// Launches up to `most` decoding steps of running requests, given by index, and takes the first; false if the
    /// engine cannot.
    pub(super) fn begin_ahead(
        &mut self,
        (batch, who): (&Batch, &[usize]),
        most: usize,
        events: &mut Vec<SchedulerEvent>,
    ) -> Result<bool, ModelError> {
        let began = Instant::now();
        let how: Vec<_> = who.iter().map(|at| Some(self.running[*at].choice())).collect();
        if !self.engine.begin_choosing(batch, &how, true)? {
            return Ok(false);
        }
        let who = who.iter().map(|at| self.running[*at].id).collect();
        self.in_flight_steps = StepsInFlight { who, steps: 1, most, began: Some(began) };
        self.fill_up()?;
        self.take_oldest(events)?;
        Ok(true)
    }

    /// Waits for the steps in flight and drops their tokens.
    pub(super) fn drop_steps_in_flight(&mut self) {
        while self.in_flight_steps.steps > 0 {
            self.in_flight_steps.steps -= 1;
            // An engine that failed returns no more tokens.
            let _ = self.engine.chosen();
        }
    }

    /// Launches steps up to the maximum, or until a request reaches its limit.
    fn fill_up(&mut self) -> Result<(), ModelError> {
        let least = self.running.iter().map(|live| live.ahead()).min().unwrap_or(0);
        while self.in_flight_steps.steps < self.in_flight_steps.most.min(least) {
            if !self.engine.choose_more(least > self.in_flight_steps.steps + 1)? {
                break;
            }
            self.in_flight_steps.steps += 1;
        }
        Ok(())
    }

    /// Waits for the oldest step and delivers its tokens.
    fn take_oldest(&mut self, events: &mut Vec<SchedulerEvent>) -> Result<(), ModelError> {
        let drawn = self.engine.chosen()?;
        self.in_flight_steps.steps = self.in_flight_steps.steps.saturating_sub(1);
        let now = Instant::now();
        if let Some(began) = self.in_flight_steps.began.replace(now) {
            self.pace.decoded(now - began, 1);
        }
        let mut chosen = Vec::new();
        for (id, drawn) in self.in_flight_steps.who.iter().zip(drawn) {
            // Tokens of cancelled requests are dropped.
            let Some(at) = self.running.iter().position(|live| live.id == *id) else { continue };
            self.running[at].advance(drawn.tokens.len());
            self.stepped += drawn.tokens.len();
            chosen.extend(drawn.tokens.into_iter().map(|token| (at, token, None)));
        }
        self.take(&chosen, events);
        Ok(())
    }
}
