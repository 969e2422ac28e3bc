//! Tokens that are chosen while those before them are given out: the device goes from some to the next without waiting for the host.
//!
//! At most two parts are under way. While nobody comes and nobody ends, each step begins one and takes the other; before anything else
//! is done with a sequence, all of them are taken.

use super::{Event, RequestId, Scheduler};
use crate::{Batch, ModelError};
use std::collections::VecDeque;
use std::time::Instant;

/// What the engine was told to choose and was not asked for.
#[derive(Default)]
pub(super) struct UnderWay {
    /// For whom, in the order of the batch.
    who: Vec<RequestId>,
    /// Tokens of each, oldest first.
    parts: VecDeque<usize>,
    /// Tokens of a part where there are as many left.
    each: usize,
    /// When the engine began with the oldest.
    began: Option<Instant>,
}

impl UnderWay {
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    fn tokens(&self) -> usize {
        self.parts.iter().sum()
    }
}

impl Scheduler<'_> {
    /// Takes the oldest of what is under way, where there is some; whether that was this step's work.
    pub(super) fn goes_on(&mut self, events: &mut Vec<Event>) -> Result<bool, ModelError> {
        if self.under_way.is_empty() {
            return Ok(false);
        }
        if self.waiting.is_empty() && self.running().eq(self.under_way.who.iter().copied()) {
            self.go_on()?;
        }
        // Nobody's tokens wait for those behind them, nor for what is done when all are taken.
        self.take_oldest(events)?;
        Ok(true)
    }

    /// Begins to choose so many tokens of those that decode, by their places among those that run, in two parts, and takes the
    /// first; whether the engine can.
    pub(super) fn begin_ahead(
        &mut self,
        (batch, who): (&Batch, &[usize]),
        ahead: usize,
        events: &mut Vec<Event>,
    ) -> Result<bool, ModelError> {
        let each = ahead / 2;
        let began = Instant::now();
        let how: Vec<_> = who.iter().map(|at| Some(self.running[*at].choice())).collect();
        if !self.engine.begin_choosing(batch, &how, each, true)? {
            return Ok(false);
        }
        let who = who.iter().map(|at| self.running[*at].id).collect();
        let parts = VecDeque::from([each]);
        self.under_way = UnderWay { who, parts, each, began: Some(began) };
        self.go_on()?;
        self.take_oldest(events)?;
        Ok(true)
    }

    /// Waits for what nobody wants.
    pub(super) fn forget_under_way(&mut self) {
        while self.under_way.parts.pop_front().is_some() {
            // An engine that failed has nothing more to tell.
            let _ = self.engine.chosen();
        }
    }

    /// Lets the device go on behind what is under way, where nobody ends there by its length.
    fn go_on(&mut self) -> Result<(), ModelError> {
        let least = self.running.iter().map(|live| live.ahead()).min().unwrap_or(0);
        let left = least.saturating_sub(self.under_way.tokens());
        let count = self.under_way.each.min(left);
        if count > 0 && self.engine.choose_more(count, left > count)? {
            self.under_way.parts.push_back(count);
        }
        Ok(())
    }

    /// Waits for the oldest part, and gives out its tokens.
    fn take_oldest(&mut self, events: &mut Vec<Event>) -> Result<(), ModelError> {
        let drawn = self.engine.chosen()?;
        let count = self.under_way.parts.pop_front().unwrap_or(0);
        let now = Instant::now();
        if let Some(began) = self.under_way.began.replace(now) {
            self.pace.decoded(now - began, count);
        }
        let mut chosen = Vec::new();
        for (id, drawn) in self.under_way.who.iter().zip(drawn) {
            // Who has gone has no tokens.
            let Some(at) = self.running.iter().position(|live| live.id == *id) else { continue };
            self.running[at].advance(drawn.tokens.len());
            self.stepped += drawn.tokens.len();
            chosen.extend(drawn.tokens.into_iter().map(|token| (at, token, None)));
        }
        self.take(&chosen, events);
        Ok(())
    }
}
