//! Prompts whose tokens get log-probabilities: they are read in passes of their own, which give logits for every token.

use super::request::Scores;
use super::{Ended, Event, Live, RequestId, Scheduler};
use crate::{Batch, ModelError, TokenLogprobs};

/// Tokens of a pass: each has a row of logits, of which there are as many as the engine has slots, within bounds.
const FEWEST: usize = 32;
const MOST: usize = 128;

impl Scheduler<'_> {
    /// The log-probabilities of a request's prompt, from its second token on, after [`Event::Scored`]: once.
    pub fn take_scores(&mut self, request: RequestId) -> Option<Vec<TokenLogprobs>> {
        self.scored.remove(&request)
    }

    /// Adds a request whose prompt is to be scored to those that wait, or tells at once what is known of it.
    pub(super) fn submit_scored(&mut self, mut live: Live, likeliest: usize) {
        if live.tokens() > 1 {
            live.scores = Some(Scores { likeliest, known: Vec::new() });
            self.waiting.push_back(live);
            return;
        }
        let request = live.id;
        self.scored.insert(request, Vec::new());
        self.due.push(Event::Scored { request });
        match live.has_no_answer() {
            true => self.due.push(Event::Finished { request, ended: Ended::Limit }),
            false => self.waiting.push_back(live),
        }
    }

    /// One pass over prompts that are to be scored, oldest first.
    pub(super) fn score(&mut self, events: &mut Vec<Event>) -> Result<(), ModelError> {
        let mut left = self.engine.pages().sequences().clamp(FEWEST, MOST);
        let mut taken = self.lacking(|live| usize::from(live.decodes()));
        let (mut who, mut at) = (Vec::new(), 0);
        while at < self.running.len() && left > 0 {
            if self.running[at].is_scored() {
                let room = self.room_for(at, taken, events);
                let Some(live) = self.running.get(at).filter(|_| room > 0) else { break };
                // The last token is read with the answer.
                let count = (live.unread() - 1).min(left).min(room);
                taken += self.engine.pages().lacking(live.slot, count);
                who.push((at, count));
                left -= count;
            }
            at += 1;
        }
        if who.is_empty() {
            return Ok(());
        }
        let (mut batch, mut targets, mut likeliest) = (Batch::new(), Vec::new(), 0);
        for (at, count) in &who {
            let live = &self.running[*at];
            batch.add(live.slot, live.next(*count));
            targets.extend(live.targets(*count));
            likeliest = live.scores.as_ref().map_or(0, |scores| scores.likeliest).max(likeliest);
        }
        let mut scores = self.engine.score(&batch, &targets, likeliest)?.into_iter();
        for (at, count) in who {
            let live = &mut self.running[at];
            live.advance(count);
            self.stepped += count;
            let known = scores.by_ref().take(count);
            if let Some(scores) = &mut live.scores {
                let most = scores.likeliest;
                scores.known.extend(known.map(|mut score| {
                    score.likeliest.truncate(most);
                    score
                }));
            }
        }
        self.end_scored(events);
        Ok(())
    }

    /// Gives the scores of prompts that have all of them, and ends requests that want nothing more.
    fn end_scored(&mut self, events: &mut Vec<Event>) {
        for at in (0..self.running.len()).rev() {
            let live = &mut self.running[at];
            if live.unread() > 1 {
                continue;
            }
            let Some(scores) = live.scores.take() else { continue };
            let request = live.id;
            self.scored.insert(request, scores.known);
            events.push(Event::Scored { request });
            if live.has_no_answer() {
                events.push(Event::Finished { request, ended: Ended::Limit });
                let live = self.running.remove(at);
                self.leave(&live);
            }
        }
    }
}
