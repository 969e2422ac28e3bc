//! Continuous batching: many requests on one engine, which join and leave between steps.
//!
//! A step decodes one token of each sequence whose prompt is prefilled, or several tokens if the device samples and no
//! prompt is left. Prompts are prefilled in the same pass in chunks, oldest request first, with the rest of the step's
//! token budget. A long prompt takes several steps and delays the tokens of others by one chunk each.
//!
//! When the cache is full, the youngest request is preempted. Later it is swapped in from host memory, or recomputed if
//! host memory had no room. Requests are admitted in the order of their arrival, which preempted requests keep. So the
//! oldest request advances in every step, and every request becomes the oldest.

mod admission;
mod copy_cost;
mod embeddings;
mod event;
mod failed;
mod guide;
mod in_flight_steps;
mod kept_sequences;
mod pace;
mod prefixes;
mod prepare_steps;
mod read;
mod request;
mod score;
mod swap;
mod turns;

use embeddings::Embeddings;
pub use event::{Logits, SchedulerEvent};
use facts::CompactCollect;
pub use failed::FailedStep;
pub use guide::Guide;
use in_flight_steps::StepsInFlight;
use kept_sequences::KeptSequences;
use pace::Pace;
use prefixes::Prefixes;
use request::ActiveRequest;
pub use request::{FinishReason, LogitsOf, Request, RequestId};
use swap::Swap;

use crate::{Batch, Engine, ModelError, TokenLogprobs};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// Limits of an engine's steps. [`Engine::budget`] returns the best ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepBudget {
    /// Maximum tokens of a step in which no sequence decodes.
    pub tokens: usize,
    /// Maximum tokens of a step in which sequences decode, including theirs. At least half of it is for prompts.
    pub max_mixed_tokens: usize,
    /// Maximum duration of such a step, because decoding sequences wait for it: fewer prompt tokens are prefilled if it
    /// would take longer. Up to three times as long, with proportionally more tokens, if many prompts are prefilled.
    pub max_mixed_step: Duration,
    /// Maximum decoding steps in flight while no request waits, has a grammar or wants logits. The tokens of each are
    /// delivered when it ends. The first two tokens of a sequence always are separate steps.
    pub decode_steps_in_flight: usize,
}

/// The resources of an engine that are in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Requests that have a slot.
    pub running: usize,
    /// Requests that wait for a slot or for blocks.
    pub waiting: usize,
    /// Unused slots.
    pub free_slots: usize,
    /// Slots with a kept sequence, which requests may take.
    pub kept: usize,
    /// Slots with the state of a prompt prefix.
    pub snapshots: usize,
    /// Bytes of these states.
    pub snapshot_bytes: u64,
    /// States of prompt prefixes on the host; some are in a slot as well.
    pub saved_snapshots: usize,
    /// Bytes of these on the host, including keys and values.
    pub saved_snapshot_bytes: u64,
    /// Bytes of preempted requests on the host.
    pub preempted_bytes: u64,
    /// Maximum bytes of copies on the host.
    pub swap_space: u64,
    /// Cache blocks that no request and no kept sequence uses; blocks of snapshots count as free because they can be
    /// evicted.
    pub free_blocks: usize,
    /// Cache blocks.
    pub blocks: usize,
}

/// Schedules requests on an engine.
pub struct Scheduler<'e> {
    engine: &'e mut dyn Engine,
    budget: StepBudget,
    /// Number of blocks that were free at the start.
    blocks: usize,
    submitted: u64,
    /// Requests without a slot, oldest first.
    waiting: VecDeque<ActiveRequest>,
    /// Requests with a slot, oldest first.
    running: Vec<ActiveRequest>,
    /// Free slots. Requests take the lowest and snapshots the highest: a pass needs one launch per run of consecutive
    /// slots.
    free_slots: BTreeSet<usize>,
    /// Maximum number of running requests.
    slots: usize,
    /// Finished sequences that still have their slots.
    kept: KeptSequences,
    /// Cached prompt prefixes.
    prefixes: Prefixes,
    /// Host memory for requests and prefixes.
    swap: Swap,
    /// Texts to embed.
    embeddings: Embeddings,
    /// Events that the next step returns.
    due: Vec<SchedulerEvent>,
    /// Logits of the last step's tokens, if requested.
    logits: Vec<Vec<f32>>,
    /// Log-probabilities of prompts that were not fetched yet.
    scored: BTreeMap<RequestId, Vec<TokenLogprobs>>,
    /// Tokens that the engine was advanced by in the last step.
    stepped: usize,
    /// Durations of recent steps.
    pace: Pace,
    /// Decoding steps in flight.
    in_flight_steps: StepsInFlight,
    /// The only request that may be admitted, if set.
    alone: Option<RequestId>,
    /// Requests that had a slot in the last failed step.
    involved: Vec<RequestId>,
    /// Number of steps prepared while idle.
    prepared: usize,
}

impl<'e> Scheduler<'e> {
    /// A scheduler for the free slots of an engine.
    pub fn new(engine: &'e mut dyn Engine, budget: StepBudget) -> Self {
        let pages = engine.pages();
        let slots = 0..pages.sequences();
        let free_slots: BTreeSet<usize> = slots.filter(|slot| pages.is_empty(*slot)).compact_set();
        Self {
            budget,
            blocks: pages.free_blocks(),
            submitted: 0,
            waiting: VecDeque::new(),
            running: Vec::new(),
            slots: free_slots.len(),
            free_slots,
            kept: KeptSequences::default(),
            prefixes: Prefixes::new(0, 0, 0),
            swap: Swap::default(),
            embeddings: Embeddings::default(),
            due: Vec::new(),
            logits: Vec::new(),
            scored: BTreeMap::new(),
            stepped: 0,
            pace: Pace::default(),
            in_flight_steps: StepsInFlight::default(),
            alone: None,
            involved: Vec::new(),
            prepared: 0,
            engine,
        }
    }

    /// Adds a prefix cache: `snapshots` of the slots, at most all but one, store states of prompt prefixes, from which
    /// requests with the same prefix start.
    pub fn with_prefix_cache(mut self, snapshots: usize) -> Self {
        let snapshots = snapshots.min(self.free_slots.len().saturating_sub(1));
        self.slots = self.free_slots.len() - snapshots;
        let state_tokens = self.engine.architecture().state_tokens();
        self.prefixes = Prefixes::new(snapshots, state_tokens, self.engine.budget().tokens);
        self
    }

    /// Drops all cached prefixes and disables the prefix cache.
    pub fn end_prefix_cache(&mut self) {
        self.drop_snapshots();
        for live in self.running.iter_mut().chain(&mut self.waiting) {
            live.disable_snapshots();
        }
        self.prefixes = Prefixes::new(0, 0, 0);
    }

    /// Adds a request, which starts in one of the next steps.
    ///
    /// # Errors
    /// [`ModelError::Call`] when it is empty, its settings are invalid, a token is out of range, or it is longer than
    /// the model's context or than all blocks.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, ModelError> {
        self.submit_guided(request, None, None)
    }

    /// Adds a request with a guide: it ends as by a stop token once nothing may follow. With `scores`, its prompt's
    /// tokens get log-probabilities, with this number of most likely tokens each; it then prefills its whole prompt, is
    /// not cached, and may have a limit of 0 tokens.
    ///
    /// # Errors
    /// As [`Scheduler::submit`].
    pub fn submit_guided(
        &mut self,
        request: Request,
        guide: Option<Box<dyn Guide>>,
        scores: Option<usize>,
    ) -> Result<RequestId, ModelError> {
        self.check(&request)?;
        let id = RequestId(self.submitted);
        self.submitted += 1;
        if let Some(likeliest) = scores {
            let request = Request { bypass_cache: true, ..request };
            self.submit_scored(ActiveRequest::new(id, request).guided(guide), likeliest);
        } else if request.limit == 0 {
            self.due.push(SchedulerEvent::Finished { request: id, ended: FinishReason::Limit });
        } else {
            let mut live = ActiveRequest::new(id, request).guided(guide);
            if !live.bypasses_cache() {
                live.ends = self.prefixes.ends(live.prompt().0);
            }
            self.waiting.push_back(live);
        }
        Ok(id)
    }

    fn check(&self, request: &Request) -> Result<(), ModelError> {
        request.check()?;
        self.check_vocabulary(request.sampling.logit_bias.iter().map(|(token, _)| *token))?;
        self.check_tokens(&request.prompt, request.limit)
    }

    /// Tokens of a running request that were not prefilled, because a kept sequence or a snapshot has them.
    pub fn reused(&self, request: RequestId) -> Option<usize> {
        self.running.iter().find(|live| live.id == request).map(|live| live.reused)
    }

    /// Drops a request without an event; returns whether it was active.
    pub fn cancel(&mut self, request: RequestId) -> bool {
        let due = self.due.len();
        if self.cancel_embedding(request) {
            return true;
        }
        self.due.retain(|event| event.request() != request);
        self.scored.remove(&request);
        let was_due = self.due.len() < due;
        if let Some(at) = self.waiting.iter().position(|live| live.id == request) {
            self.waiting.remove(at);
            return true;
        }
        if let Some(at) = self.running.iter().position(|live| live.id == request) {
            let live = self.running.remove(at);
            self.leave(&live);
            return true;
        }
        was_due
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        let generates = !self.running.is_empty() || !self.waiting.is_empty();
        !generates && self.due.is_empty() && self.embeddings.is_empty()
    }

    /// Current usage.
    pub fn usage(&self) -> Usage {
        let pages = self.engine.pages();
        let (saved_snapshots, saved_snapshot_bytes) = self.prefixes.saved();
        Usage {
            running: self.running.len(),
            waiting: self.waiting.len(),
            free_slots: self.free_slots.len(),
            kept: self.kept.len(),
            snapshots: self.prefixes.len(),
            snapshot_bytes: self.prefixes.len() as u64 * self.engine.bytes_of(0),
            saved_snapshots,
            saved_snapshot_bytes,
            preempted_bytes: self.preempted_bytes(),
            swap_space: self.swap.space(),
            free_blocks: pages.blocks() - pages.taken_blocks(),
            blocks: self.blocks,
        }
    }

    /// Requests that have a slot, oldest first.
    pub fn running(&self) -> impl Iterator<Item = RequestId> {
        self.running.iter().map(|live| live.id)
    }

    /// Tokens that the engine was advanced by in the last step, prefill and decode together.
    pub fn stepped(&self) -> usize {
        self.stepped
    }

    /// The logits that a token of the last step was chosen from.
    pub fn logits(&self, of: Logits) -> Option<&[f32]> {
        self.logits.get(of.0).map(Vec::as_slice)
    }

    /// Advances the requests and returns their events, those of one request in order.
    ///
    /// # Errors
    /// The engine's error. Then every request waits again with its tokens; a request that causes the error has to be
    /// cancelled.
    pub fn step(&mut self) -> Result<Vec<SchedulerEvent>, ModelError> {
        let mut events = std::mem::take(&mut self.due);
        // The logits belong to the failed step.
        for event in &mut events {
            if let SchedulerEvent::Token { logits, .. } = event {
                *logits = None;
            }
        }
        self.logits.clear();
        self.stepped = 0;
        let done = self.passes(&mut events);
        if let Err(error) = done {
            self.drop_steps_in_flight();
            self.involved = self.running().collect();
            self.stop_all(&mut events);
            self.due = events;
            return Err(error);
        }
        Ok(events)
    }

    fn passes(&mut self, events: &mut Vec<SchedulerEvent>) -> Result<(), ModelError> {
        self.swap.begin();
        if self.take_step_in_flight(events)? {
            return Ok(());
        }
        self.make_room(events);
        self.admit(events)?;
        self.score(events)?;
        self.advance_all(events)?;
        if self.in_flight_steps.is_empty() {
            self.embed(events)?;
        }
        self.arrive()
    }

    /// Decodes and prefills in the same pass, which reads the weights once.
    fn advance_all(&mut self, events: &mut Vec<SchedulerEvent>) -> Result<(), ModelError> {
        let decoding = self.running.iter().filter(|live| live.decodes()).count();
        if decoding > 0 && !self.running.iter().any(ActiveRequest::prefills) {
            return self.decode(events);
        }
        let room = match decoding {
            0 => self.budget.tokens.max(1),
            _ => {
                let prompts = self.running.iter().filter(|live| live.prefills()).count();
                let budget = self.pace.among(prompts, self.budget);
                let max_mixed_step = budget.max_mixed_step.saturating_sub(self.swap.took());
                self.pace.prompt_tokens(StepBudget { max_mixed_step, ..budget }, decoding)
            }
        };
        if self.prepare_for_joining_requests(decoding, room)? {
            return self.decode(events);
        }
        self.read(room, events)
    }

    /// Decodes one or several tokens of each decoding sequence.
    fn decode(&mut self, events: &mut Vec<SchedulerEvent>) -> Result<(), ModelError> {
        let who = self.decoding();
        let mut batch = Batch::new();
        for at in &who {
            let live = &self.running[*at];
            batch.add(live.slot, live.next(1));
        }
        let (count, began) = (self.ahead(&who), Instant::now());
        if count > 1 && self.begin_ahead((&batch, &who), count, events)? {
            return Ok(());
        }
        self.advance(&batch, who.iter().map(|at| (*at, 1)).collect(), count, events)?;
        self.pace.decoded(began.elapsed(), count);
        Ok(())
    }

    /// Indices of decoding sequences among the running ones.
    fn decoding(&self) -> Vec<usize> {
        (0..self.running.len()).filter(|at| self.running[*at].decodes()).collect()
    }

    /// Advances running requests, given by index with a number of tokens each, and takes the sampled tokens of those
    /// that have no unread tokens left.
    fn advance(
        &mut self,
        batch: &Batch,
        who: Vec<(usize, usize)>,
        count: usize,
        events: &mut Vec<SchedulerEvent>,
    ) -> Result<(), ModelError> {
        let vocabulary = self.engine.architecture().vocabulary;
        for (at, tokens) in &who {
            let live = &mut self.running[*at];
            if live.pending_tokens() == *tokens {
                live.compute_mask(vocabulary);
            }
        }
        let how = |(at, tokens): &(usize, usize)| {
            let live = &self.running[*at];
            (live.pending_tokens() == *tokens).then(|| live.choice())
        };
        let how: Vec<_> = who.iter().map(how).collect();
        let drawn = self.engine.choose(batch, &how, count)?;
        let mut chosen = Vec::new();
        for ((at, tokens), drawn) in who.into_iter().zip(drawn) {
            // The last sampled token does not advance its sequence.
            let advanced = tokens + drawn.tokens.len().saturating_sub(1);
            self.running[at].advance(advanced);
            self.stepped += advanced;
            self.snapshot(at)?;
            let logits = drawn.logits.map(|logits| {
                self.logits.push(logits);
                Logits(self.logits.len() - 1)
            });
            let tokens = drawn.tokens.into_iter().enumerate();
            chosen.extend(tokens.map(|(step, token)| (at, token, logits.filter(|_| step == 0))));
        }
        self.take(&chosen, events);
        Ok(())
    }

    /// Maximum decoding steps in flight from now on.
    fn ahead(&self, who: &[usize]) -> usize {
        let waits = !self.waiting.is_empty() || !self.embeddings.is_empty();
        let others = waits || who.len() < self.running.len();
        if others || who.iter().any(|at| self.running[*at].keeps_sequence()) {
            return 1;
        }
        let least = who.iter().map(|at| self.running[*at].ahead()).min().unwrap_or(1);
        // While one is delivered another one runs, however long they take.
        let mut count =
            least.min(self.budget.decode_steps_in_flight).min(self.pace.in_flight()).max(1);
        while count > 1 && self.blocks_needed(|_| count) > self.free_blocks() {
            count -= 1;
        }
        count
    }

    /// Adds sampled tokens to running requests, given by index, and removes those that ended.
    fn take(
        &mut self,
        chosen: &[(usize, Option<u32>, Option<Logits>)],
        events: &mut Vec<SchedulerEvent>,
    ) {
        let mut over = vec![None; self.running.len()];
        for (at, token, logits) in chosen {
            // Tokens after the end are dropped; the device may have decoded further.
            if over[*at].is_some() {
                continue;
            }
            let live = &mut self.running[*at];
            let ended = match token {
                Some(token) => {
                    let (own, ended) = live.take(*token);
                    if own {
                        events.push(SchedulerEvent::Token {
                            request: live.id,
                            token: *token,
                            logits: *logits,
                        });
                    }
                    ended
                }
                None => Some(FinishReason::NoToken),
            };
            if let Some(ended) = ended {
                over[*at] = Some(ended);
                events.push(SchedulerEvent::Finished { request: live.id, ended });
            }
        }
        for (at, ended) in over.into_iter().enumerate().rev() {
            if let Some(ended) = ended {
                let live = self.running.remove(at);
                self.end(&live, ended);
            }
        }
    }

    fn free_blocks(&self) -> usize {
        self.engine.pages().free_blocks()
    }
}

impl Drop for Scheduler<'_> {
    /// Frees the engine's slots and drops its steps in flight.
    fn drop(&mut self) {
        self.drop_steps_in_flight();
        self.running.iter().for_each(|live| self.engine.reset(live.slot));
        self.restart_embeddings();
        self.drop_all();
    }
}
