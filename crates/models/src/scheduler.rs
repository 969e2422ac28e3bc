//! Many requests on one engine: they join and leave between steps.
//!
//! A step decodes one token of each sequence that has read its prompt, or a few where the device chooses them and no prompt is
//! left. Prompts are read by the same pass, oldest first, with what is left of the step's token budget: a long prompt that joins
//! takes several steps, and delays the tokens of others by one chunk each.
//!
//! When the cache is full, the youngest request gives its slot and its pages away. Later it goes on from its copy on the host, or
//! reads its tokens again where there was no room for one. Requests are admitted in the order in which they came, and those that came back keep their place in it. So the oldest one advances in every
//! step, whatever else is asked for, and every request becomes the oldest.

mod admission;
mod ahead;
mod copy_cost;
mod embeddings;
mod event;
mod failed;
mod guide;
mod kept;
mod pace;
mod prefixes;
mod read;
mod request;
mod score;
mod swap;
mod turns;
mod under_way;

use embeddings::Embeddings;
pub use event::{Event, Logits};
use facts::CompactCollect;
pub use failed::Failed;
pub use guide::Guide;
use kept::Keep;
use pace::Pace;
use prefixes::Prefixes;
use request::Live;
pub use request::{Ended, LogitsOf, Request, RequestId};
use swap::Swap;
use under_way::UnderWay;

use crate::{Batch, Engine, ModelError, TokenLogprobs};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// How much an engine is given to do in a step. [`Engine::budget`] has what is best for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepBudget {
    /// Most tokens of a step in which nothing decodes.
    pub tokens: usize,
    /// Most tokens of a step in which sequences decode, theirs counted: they wait for the others. However many decode, half
    /// of it is for prompts.
    pub beside: usize,
    /// How long such a step may take, for which the tokens of others wait: where it would take longer, fewer tokens are read. Up to
    /// three times as long, with as many times the tokens, where many prompts are read.
    pub patience: Duration,
    /// Most decoding steps in flight, where no request waits, has a grammar or wants logits. The tokens of each are delivered when it
    /// ends. The first two tokens of a sequence are steps of their own in any case.
    pub ahead: usize,
}

/// What of an engine is in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Requests that have a slot.
    pub running: usize,
    /// Requests that wait for one, or for pages.
    pub waiting: usize,
    /// Slots that nobody has.
    pub free_slots: usize,
    /// Slots with a kept sequence, which a request may have.
    pub kept: usize,
    /// Slots with the state behind a prompt's beginning, for requests that begin alike.
    pub snapshots: usize,
    /// Bytes of these states.
    pub snapshot_bytes: u64,
    /// States behind beginnings of prompts that the host has, some of them too.
    pub saved_snapshots: usize,
    /// Bytes of these on the host, with their keys and values.
    pub saved_snapshot_bytes: u64,
    /// Bytes of preempted requests on the host.
    pub preempted_bytes: u64,
    /// Bytes that copies on the host may take.
    pub swap_space: u64,
    /// Blocks of the caches that no request has, nor a kept sequence: snapshots give theirs away.
    pub free_blocks: usize,
    /// Blocks of the caches.
    pub blocks: usize,
}

/// Requests on an engine.
pub struct Scheduler<'e> {
    engine: &'e mut dyn Engine,
    budget: StepBudget,
    /// Blocks that were free in the beginning.
    blocks: usize,
    submitted: u64,
    /// Requests without a slot, oldest first.
    waiting: VecDeque<Live>,
    /// Requests with one, oldest first.
    running: Vec<Live>,
    /// Requests get the lowest and snapshots the highest: a pass takes a launch for each run of neighbouring slots.
    free_slots: BTreeSet<usize>,
    /// Most requests that run.
    slots: usize,
    /// Sequences that ended, in slots that are not free.
    kept: Keep,
    /// Beginnings of prompts, likewise.
    prefixes: Prefixes,
    /// What of both is on the host.
    swap: Swap,
    /// Texts that are embedded.
    embeddings: Embeddings,
    /// Events that the next step gives out.
    due: Vec<Event>,
    /// Logits that tokens of the last step were chosen from, where they were wanted.
    logits: Vec<Vec<f32>>,
    /// Log-probabilities of prompts that were not taken yet.
    scored: BTreeMap<RequestId, Vec<TokenLogprobs>>,
    /// Tokens that the engine was advanced by in the last step.
    stepped: usize,
    /// How long steps took.
    pace: Pace,
    /// What the engine is choosing.
    under_way: UnderWay,
    /// The request that alone is admitted, where there is one.
    alone: Option<RequestId>,
    /// Requests that had a slot in the step that failed last.
    involved: Vec<RequestId>,
    /// Steps that were made ready while there was nothing to do.
    prepared: usize,
}

impl<'e> Scheduler<'e> {
    /// A scheduler without requests, for the slots of an engine that are free.
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
            kept: Keep::default(),
            prefixes: Prefixes::new(0, 0, 0),
            swap: Swap::default(),
            embeddings: Embeddings::default(),
            due: Vec::new(),
            logits: Vec::new(),
            scored: BTreeMap::new(),
            stepped: 0,
            pace: Pace::default(),
            under_way: UnderWay::default(),
            alone: None,
            involved: Vec::new(),
            prepared: 0,
            engine,
        }
    }

    /// The same with a prefix cache: so many of the slots, at most all but one, are for states behind beginnings of prompts,
    /// from which requests go on that begin alike.
    pub fn with_prefix_cache(mut self, snapshots: usize) -> Self {
        let snapshots = snapshots.min(self.free_slots.len().saturating_sub(1));
        self.slots = self.free_slots.len() - snapshots;
        let state_tokens = self.engine.architecture().state_tokens();
        self.prefixes = Prefixes::new(snapshots, state_tokens, self.engine.budget().tokens);
        self
    }

    /// Forgets all that is kept behind beginnings of prompts, and keeps no more.
    pub fn end_prefix_cache(&mut self) {
        self.drop_snapshots();
        for live in self.running.iter_mut().chain(&mut self.waiting) {
            live.leave_nothing();
        }
        self.prefixes = Prefixes::new(0, 0, 0);
    }

    /// Takes a request, which begins with one of the next steps.
    ///
    /// # Errors
    /// [`ModelError::Call`] when it is empty, its settings mean nothing, a token is none of the model's, or it is longer than the
    /// model's context or than all pages.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, ModelError> {
        self.submit_guided(request, None, None)
    }

    /// The same for a sequence that has to keep to something: it ends as by a stop id once nothing may follow. With `scores` the tokens of
    /// its prompt get log-probabilities, with so many of the likeliest each: it then reads its whole prompt and leaves nothing, and may
    /// have no answer at all.
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
            let request = Request { anew: true, ..request };
            self.submit_scored(Live::new(id, request).guided(guide), likeliest);
        } else if request.limit == 0 {
            self.due.push(Event::Finished { request: id, ended: Ended::Limit });
        } else {
            let mut live = Live::new(id, request).guided(guide);
            if !live.reads_anew() {
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

    /// Tokens of a request that runs which it did not read, because a kept sequence or a snapshot began with them.
    pub fn reused(&self, request: RequestId) -> Option<usize> {
        self.running.iter().find(|live| live.id == request).map(|live| live.reused)
    }

    /// Forgets a request; whether there was such a one that had not ended. No event tells of it any more.
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

    /// What is in use.
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

    /// Tokens that the engine was advanced by in the last step, of prompts and of what was added to them.
    pub fn stepped(&self) -> usize {
        self.stepped
    }

    /// What a token of the last step was chosen from.
    pub fn logits(&self, of: Logits) -> Option<&[f32]> {
        self.logits.get(of.0).map(Vec::as_slice)
    }

    /// Advances the requests, and tells what happened to them, the events of one request in their order.
    ///
    /// # Errors
    /// What the engine says. Then every request waits again, with the tokens that it had; one that is to blame has to be cancelled.
    pub fn step(&mut self) -> Result<Vec<Event>, ModelError> {
        let mut events = std::mem::take(&mut self.due);
        // What their tokens were chosen from goes with the step that failed.
        for event in &mut events {
            if let Event::Token { logits, .. } = event {
                *logits = None;
            }
        }
        self.logits.clear();
        self.stepped = 0;
        let done = self.passes(&mut events);
        if let Err(error) = done {
            self.forget_under_way();
            self.involved = self.running().collect();
            self.stop_all(&mut events);
            self.due = events;
            return Err(error);
        }
        Ok(events)
    }

    fn passes(&mut self, events: &mut Vec<Event>) -> Result<(), ModelError> {
        self.swap.begin();
        if self.goes_on(events)? {
            return Ok(());
        }
        self.make_room(events);
        self.admit(events)?;
        self.score(events)?;
        self.advance_all(events)?;
        if self.under_way.is_empty() {
            self.embed(events)?;
        }
        self.arrive()
    }

    /// Decodes, and reads prompts beside that in the same pass: the weights are read once.
    fn advance_all(&mut self, events: &mut Vec<Event>) -> Result<(), ModelError> {
        let decoding = self.running.iter().filter(|live| live.decodes()).count();
        if decoding > 0 && !self.running.iter().any(Live::reads) {
            return self.decode(events);
        }
        let room = match decoding {
            0 => self.budget.tokens.max(1),
            _ => {
                let prompts = self.running.iter().filter(|live| live.reads()).count();
                let budget = self.pace.among(prompts, self.budget);
                let patience = budget.patience.saturating_sub(self.swap.took());
                self.pace.beside(StepBudget { patience, ..budget }, decoding)
            }
        };
        if self.prepares_for_who_joins(decoding, room)? {
            return self.decode(events);
        }
        self.read(room, events)
    }

    /// One token of each sequence that decodes, or a few.
    fn decode(&mut self, events: &mut Vec<Event>) -> Result<(), ModelError> {
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

    /// The places among those that run of sequences that decode.
    fn decoding(&self) -> Vec<usize> {
        (0..self.running.len()).filter(|at| self.running[*at].decodes()).collect()
    }

    /// Advances requests, by their places among those that run, by so many tokens of theirs each, and takes the tokens that are
    /// chosen for those that have read all.
    fn advance(
        &mut self,
        batch: &Batch,
        who: Vec<(usize, usize)>,
        count: usize,
        events: &mut Vec<Event>,
    ) -> Result<(), ModelError> {
        let vocabulary = self.engine.architecture().vocabulary;
        for (at, tokens) in &who {
            let live = &mut self.running[*at];
            if live.unread() == *tokens {
                live.lay_mask(vocabulary);
            }
        }
        let how = |(at, tokens): &(usize, usize)| {
            let live = &self.running[*at];
            (live.unread() == *tokens).then(|| live.choice())
        };
        let how: Vec<_> = who.iter().map(how).collect();
        let drawn = self.engine.choose(batch, &how, count)?;
        let mut chosen = Vec::new();
        for ((at, tokens), drawn) in who.into_iter().zip(drawn) {
            // By the last of those that were chosen a sequence is not advanced.
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

    /// Decoding steps that may be in flight at once from now on.
    fn ahead(&self, who: &[usize]) -> usize {
        let waits = !self.waiting.is_empty() || !self.embeddings.is_empty();
        let others = waits || who.len() < self.running.len();
        if others || who.iter().any(|at| self.running[*at].keeps()) {
            return 1;
        }
        let least = who.iter().map(|at| self.running[*at].ahead()).min().unwrap_or(1);
        // While one is delivered another one runs, however long they take.
        let mut count = least.min(self.budget.ahead).min(self.pace.in_flight()).max(1);
        while count > 1 && self.lacking(|_| count) > self.free_blocks() {
            count -= 1;
        }
        count
    }

    /// Takes tokens that were chosen for requests that run, by their places among these, and forgets those that ended.
    fn take(&mut self, chosen: &[(usize, Option<u32>, Option<Logits>)], events: &mut Vec<Event>) {
        let mut over = vec![None; self.running.len()];
        for (at, token, logits) in chosen {
            // Behind its end a sequence has no more tokens, whatever the device went on with.
            if over[*at].is_some() {
                continue;
            }
            let live = &mut self.running[*at];
            let ended = match token {
                Some(token) => {
                    let (own, ended) = live.take(*token);
                    if own {
                        events.push(Event::Token {
                            request: live.id,
                            token: *token,
                            logits: *logits,
                        });
                    }
                    ended
                }
                None => Some(Ended::NoToken),
            };
            if let Some(ended) = ended {
                over[*at] = Some(ended);
                events.push(Event::Finished { request: live.id, ended });
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
    /// The engine's slots are free again, and it chooses nothing for them.
    fn drop(&mut self) {
        self.forget_under_way();
        self.running.iter().for_each(|live| self.engine.reset(live.slot));
        self.restart_embeddings();
        self.drop_all();
    }
}
