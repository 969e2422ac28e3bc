//! Log-probabilities of prompts: they are prefilled in separate passes that return logits for every token.

use super::request::Scores;
use super::{ActiveRequest, FinishReason, RequestId, Scheduler, SchedulerEvent};
use crate::{Batch, ModelError, TokenLogprobs};

/// Minimum tokens of a pass. Each token has a row of logits, whose memory is limited to the number of slots, within
/// bounds.
const FEWEST: usize = 32;
const MAX_SEQUENCES: usize = 128;

impl Scheduler<'_> {
    /// The log-probabilities of a request's prompt, starting at its second token. Available once, after
    /// [`SchedulerEvent::Scored`].
    pub fn take_scores(&mut self, request: RequestId) -> Option<Vec<TokenLogprobs>> {
        self.scored.remove(&request)
    }

    /// Queues a request whose prompt is to be scored, or reports the scores of a prompt of one token at once.
    pub(super) fn submit_scored(&mut self, mut live: ActiveRequest, likeliest: usize) {
        if live.tokens() > 1 {
            live.scores = Some(Scores { likeliest, known: Vec::new() });
            self.waiting.push_back(live);
            return;
        }
        let request = live.id;
        self.scored.insert(request, Vec::new());
        self.due.push(SchedulerEvent::Scored { request });
        match live.has_no_answer() {
            true => self.due.push(SchedulerEvent::Finished { request, ended: FinishReason::Limit }),
            false => self.waiting.push_back(live),
        }
    }

    /// One pass over prompts to be scored, oldest first.
    pub(super) fn score(&mut self, events: &mut Vec<SchedulerEvent>) -> Result<(), ModelError> {
        let mut left = self.engine.pages().sequences().clamp(FEWEST, MAX_SEQUENCES);
        let mut taken = self.blocks_needed(|live| usize::from(live.decodes()));
        let (mut who, mut at) = (Vec::new(), 0);
        while at < self.running.len() && left > 0 {
            if self.running[at].is_scored() {
                let room = self.room_for(at, taken, events);
                let Some(live) = self.running.get(at).filter(|_| room > 0) else { break };
                // The last token of the prompt is prefilled with the answer.
                let count = (live.pending_tokens() - 1).min(left).min(room);
                taken += self.engine.pages().blocks_needed(live.slot, count);
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

    /// Reports completed scores, and ends requests that want nothing else.
    fn end_scored(&mut self, events: &mut Vec<SchedulerEvent>) {
        for at in (0..self.running.len()).rev() {
            let live = &mut self.running[at];
            if live.pending_tokens() > 1 {
                continue;
            }
            let Some(scores) = live.scores.take() else { continue };
            let request = live.id;
            self.scored.insert(request, scores.known);
            events.push(SchedulerEvent::Scored { request });
            if live.has_no_answer() {
                events.push(SchedulerEvent::Finished { request, ended: FinishReason::Limit });
                let live = self.running.remove(at);
                self.leave(&live);
            }
        }
    }
}
