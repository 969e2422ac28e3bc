//! The engine's thread: receives submissions, drops cancelled sequences, steps the scheduler and sends updates.

use crate::embeddings::PendingEmbeddings;
use crate::grammar::{GrammarGuide, GuideFailure};
use crate::job::{Command, Job, SequenceError, Update};
use crate::prefix_cache_verifier::PrefixCacheVerifier;
use crate::service::Shared;
use crate::times::Times;
use crate::update_dispatcher::UpdateDispatcher;
use crate::{EngineBuilder, EngineError, ServicePhase, failed_step, logprobs};
use models::{
    FinishReason, Guide, Logits, LogitsOf, ModelError, Request, RequestId, Scheduler,
    SchedulerEvent, Usage,
};
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{self, error::TryRecvError};

/// How long the engine is idle after a request before it prepares more. A request that arrives during a preparation waits for
/// its end, and clients often send the next request as soon as they have an answer.
const IDLE_BEFORE_PREPARING: Duration = Duration::from_millis(20);

/// The interval at which commands are polled during that time.
const POLL: Duration = Duration::from_micros(50);

/// Builds the engine and serves until the service drains or the device is lost.
pub(crate) fn run(
    shared: &Shared,
    commands: mpsc::Receiver<Command>,
    build: EngineBuilder,
) -> Result<(), EngineError> {
    // Set the final phase even if the code below panics, so that no caller waits for a dead thread.
    let final_phase = SetFinalPhase(shared);
    let served = build().and_then(|mut engine| {
        shared.metrics.engine_built(engine.pages(), engine.budget());
        let budget = shared.budget(engine.budget());
        let mut scheduler =
            Scheduler::new(&mut *engine, budget).with_prefix_cache(shared.settings.snapshots);
        scheduler.set_swap_space(shared.settings.swap_space)?;
        shared.set_usage(scheduler.usage());
        shared.set_phase(ServicePhase::Ready);
        let verifier = PrefixCacheVerifier::new(shared.settings.verify_cache);
        std::thread::scope(|scope| {
            let updates = UpdateDispatcher::spawn_in(scope);
            let (open, embeddings) = (BTreeMap::new(), PendingEmbeddings::default());
            let mut worker = Worker {
                shared,
                commands,
                scheduler,
                open,
                verifier,
                embeddings,
                updates,
                has_served: false,
                may_prepare: true,
            };
            worker.serve().map_err(EngineError::from)
        })
    });
    if let Err(error) = &served {
        shared.set_phase(ServicePhase::Failed(error.to_string()));
    }
    drop(final_phase);
    served
}

/// Sets the final phase when the thread ends, also by a panic.
struct SetFinalPhase<'a>(&'a Shared);

impl Drop for SetFinalPhase<'_> {
    fn drop(&mut self) {
        // The first error stays: `set_phase` ignores this one after a failure.
        self.0.set_phase(match std::thread::panicking() {
            true => ServicePhase::Failed("the engine's thread panicked".to_owned()),
            false => ServicePhase::Stopped,
        });
    }
}

/// A sequence that has not ended.
pub(crate) struct OpenSequence {
    job: Job,
    times: Times,
    /// The cell that receives the error that stops its guide.
    failed: Option<GuideFailure>,
    /// Whether it started from a cached state that is to be verified.
    verify: bool,
}

impl OpenSequence {
    fn failure(&self) -> Option<String> {
        self.failed.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub(crate) struct Worker<'a> {
    pub(crate) shared: &'a Shared,
    commands: mpsc::Receiver<Command>,
    pub(crate) scheduler: Scheduler<'a>,
    pub(crate) open: BTreeMap<RequestId, OpenSequence>,
    verifier: PrefixCacheVerifier,
    pub(crate) embeddings: PendingEmbeddings,
    updates: UpdateDispatcher,
    /// Whether a command has arrived since the start.
    has_served: bool,
    /// Whether there may be more to prepare while idle.
    may_prepare: bool,
}

impl Worker<'_> {
    fn serve(&mut self) -> Result<(), ModelError> {
        loop {
            self.updates.send();
            self.take_commands();
            self.end_cancelled();
            if self.scheduler.is_idle() {
                if self.shared.is_draining() {
                    return Ok(());
                }
                continue;
            }
            self.updates.send();
            self.step()?;
        }
    }

    /// Handles the queued commands; blocks for one if the scheduler is idle.
    fn take_commands(&mut self) {
        if self.scheduler.is_idle() && !self.shared.is_draining() {
            match self.next_command() {
                Some(command) => self.take(command),
                None => self.shared.set_phase(ServicePhase::Draining),
            }
        }
        while let Ok(command) = self.commands.try_recv() {
            self.take(command);
        }
    }

    /// Waits for a command. Until one arrives, the scheduler prepares (records graphs, pins host memory) one item at a
    /// time; after a request only once the engine has been idle for [`IDLE_BEFORE_PREPARING`].
    fn next_command(&mut self) -> Option<Command> {
        let began = Instant::now();
        while self.may_prepare {
            match self.commands.try_recv() {
                Ok(command) => {
                    self.has_served = true;
                    return Some(command);
                }
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty)
                    if self.has_served && began.elapsed() < IDLE_BEFORE_PREPARING =>
                {
                    std::thread::sleep(POLL);
                }
                Err(TryRecvError::Empty) => {
                    self.may_prepare = self.scheduler.prepare();
                    self.shared.set_usage(self.scheduler.usage());
                }
            }
        }
        self.commands.blocking_recv()
    }

    fn take(&mut self, command: Command) {
        let jobs = match command {
            Command::Submit(jobs) => jobs,
            Command::Embed(job) => {
                self.embeddings.submit(&mut self.scheduler, job);
                return self.shared.set_usage(self.scheduler.usage());
            }
            Command::Wake => return,
        };
        for mut job in jobs {
            let bound = job.sequence.guide.take();
            let failed = bound.as_ref().map(GrammarGuide::failure);
            let guide = bound.map(|bound| Box::new(bound) as Box<dyn Guide>);
            let rules = std::mem::take(&mut job.sequence.rules);
            let guide = rules.guide(&job.sequence.request.stop_ids, guide);
            let logits = match job.sequence.logprobs {
                Some(_) => LogitsOf::All,
                None if self.verifier.is_enabled() => LogitsOf::First,
                None => LogitsOf::None,
            };
            let request = Request { logits, ..job.sequence.request.clone() };
            let scores = job.sequence.score_prompt.then(|| job.sequence.logprobs.unwrap_or(0));
            match self.scheduler.submit_guided(request, guide, scores) {
                Ok(id) => {
                    let times = Times::new(job.arrived, job.sequence.request.prompt.len());
                    self.open.insert(id, OpenSequence { job, times, failed, verify: false });
                }
                // `ServiceLimits` was checked at submission; the scheduler's own checks fail here.
                Err(error) => {
                    let why = SequenceError::Engine(error.to_string());
                    self.updates.add(&job, Update::Failed { index: job.index, why });
                }
            }
        }
        self.shared.set_usage(self.scheduler.usage());
    }

    /// Ends cancelled and stopped sequences, or all of them if the server aborts.
    pub(crate) fn end_cancelled(&mut self) {
        let abort = self.shared.abort.load(Ordering::Relaxed);
        let ending = |open: &OpenSequence| {
            if abort || open.job.updates.is_closed() {
                return Some(Ending::Cancelled { abort });
            }
            let stop = open.job.stop.load(Ordering::Relaxed);
            stop.then_some(Ending::Finished(FinishReason::Caller))
        };
        self.embeddings.end_cancelled(&mut self.scheduler, abort);
        let gone = self.open.iter().filter_map(|(id, open)| Some((*id, ending(open)?)));
        let gone: Vec<_> = gone.collect();
        let any = !gone.is_empty();
        for (id, ending) in gone {
            self.end(id, ending);
        }
        // No step follows if the scheduler is idle now, so publish the usage here.
        if any {
            self.shared.set_usage(self.scheduler.usage());
        }
    }

    /// Runs one step; if it fails, ends the sequences that caused the failure.
    fn step(&mut self) -> Result<(), ModelError> {
        let began = Instant::now();
        match self.scheduler.step() {
            Ok(events) => {
                self.finish_step(began, &events);
                Ok(())
            }
            Err(error) => failed_step::isolate_failing_requests(self, error),
        }
    }

    /// Handles the result of a step.
    pub(crate) fn finish_step(&mut self, began: Instant, events: &[SchedulerEvent]) {
        // A sequence that has a slot now or ended in this step started with this step at the latest.
        let running: Vec<RequestId> = self.scheduler.running().collect();
        let seen = events.iter().filter(|event| !matches!(event, SchedulerEvent::Preempted { .. }));
        for id in running.into_iter().chain(seen.map(SchedulerEvent::request)) {
            if let Some(open) = self.open.get_mut(&id) {
                open.times.begin(began);
            }
        }
        self.send_updates(events);
        self.shared.metrics.iteration(self.scheduler.stepped());
        self.shared.set_usage(self.scheduler.usage());
    }

    /// Sends updates for events to their callers.
    pub(crate) fn send_updates(&mut self, events: &[SchedulerEvent]) {
        let now = Instant::now();
        let mut previous: Option<RequestId> = None;
        for event in events {
            let id = event.request();
            match event {
                SchedulerEvent::Begun { reused, from_host, lost, .. } => {
                    self.sequence_started(id, *reused, *from_host, *lost);
                }
                SchedulerEvent::Scored { .. } => self.prompt_scored(id),
                SchedulerEvent::Token { token, logits, .. } => {
                    let first_of_step = previous != Some(id);
                    previous = Some(id);
                    self.token(id, *token, *logits, first_of_step.then_some(now));
                }
                SchedulerEvent::Finished { ended, .. } => {
                    let failure = self.open.get(&id).and_then(OpenSequence::failure);
                    let ending = match failure {
                        Some(words) => Ending::Failed(SequenceError::StructuredOutput(words)),
                        None if *ended == FinishReason::NoToken => {
                            self.shared.record_error(
                                "no token can be sampled: a sequence's logits are NaN",
                            );
                            let words = "no token can be sampled: the model's logits for this sequence are NaN";
                            Ending::Failed(SequenceError::Engine(words.to_owned()))
                        }
                        None => Ending::Finished(*ended),
                    };
                    self.end(id, ending);
                }
                SchedulerEvent::Embedded { .. } => self.embeddings.finish(&mut self.scheduler, id),
                SchedulerEvent::Preempted { saved, .. } => self.shared.metrics.preempted(*saved),
            }
        }
    }

    /// Sends the start of a sequence; ignored when it starts again after preemption.
    fn sequence_started(&mut self, id: RequestId, cached: usize, from_host: bool, lost: usize) {
        let Some(open) = self.open.get_mut(&id) else { return };
        if open.times.prefix_looked_up(&self.shared.metrics, cached, from_host, lost) {
            open.verify = cached > 0 && self.verifier.select();
            self.updates.add(&open.job, Update::Started { index: open.job.index, cached });
        }
    }

    /// Sends the log-probabilities of a prompt.
    fn prompt_scored(&mut self, id: RequestId) {
        let scores = self.scheduler.take_scores(id);
        if let Some((open, logprobs)) = self.open.get(&id).zip(scores) {
            self.updates.add(&open.job, Update::Prompt { index: open.job.index, logprobs });
        }
    }

    /// Sends a token. `now` is given for the first token of a step only.
    fn token(&mut self, id: RequestId, token: u32, of: Option<Logits>, now: Option<Instant>) {
        if let Some(second) = of.and_then(|of| self.scheduler.logits(of))
            && let Some(same) = self.verifier.compare(id, second)
        {
            return self.prefix_verified(same);
        }
        let Some(open) = self.open.get_mut(&id) else { return };
        let logits = of.and_then(|of| self.scheduler.logits(of));
        let check = std::mem::take(&mut open.verify).then_some(logits).flatten();
        let check = check.map(|logits| (open.job.sequence.request.prompt.clone(), logits.to_vec()));
        let wanted = open.job.sequence.logprobs;
        let logprobs = wanted.zip(logits).map(|(count, logits)| logprobs::of(logits, token, count));
        open.times.token(&self.shared.metrics, now);
        let update = Update::Token { index: open.job.index, token, logprobs };
        self.updates.add(&open.job, update);
        if let Some((prompt, logits)) = check {
            self.verifier.recompute(&mut self.scheduler, prompt, logits);
        }
    }

    /// Records the result of verifying a cached state.
    fn prefix_verified(&mut self, same: bool) {
        self.shared.metrics.prefix_verified(same);
        if !same {
            self.shared.record_error(
                "a cached state gave other logits than its recomputed tokens: the prefix cache is disabled",
            );
            self.scheduler.end_prefix_cache();
        }
    }

    /// Ends a sequence, whatever its state.
    pub(crate) fn end(&mut self, id: RequestId, ending: Ending) {
        if self.verifier.remove(id) {
            self.scheduler.cancel(id);
        }
        let Some(OpenSequence { job, times, .. }) = self.open.remove(&id) else { return };
        // A no-op if the scheduler ended the sequence itself.
        self.scheduler.cancel(id);
        times.end(&self.shared.metrics, &ending);
        let index = job.index;
        let update = match ending {
            Ending::Finished(ended) => Update::Finished { index, ended },
            Ending::Failed(why) => Update::Failed { index, why },
            Ending::Cancelled { abort: true } => {
                Update::Failed { index, why: SequenceError::Aborted }
            }
            Ending::Cancelled { abort: false } => return,
        };
        self.updates.add(&job, update);
    }
}

impl Drop for Worker<'_> {
    /// Publishes zero usage, whatever ended the thread.
    fn drop(&mut self) {
        let usage = self.scheduler.usage();
        self.shared.set_usage(Usage { running: 0, waiting: 0, free_slots: 0, ..usage });
    }
}

/// How a sequence ends.
#[derive(Debug, Clone)]
pub(crate) enum Ending {
    Finished(FinishReason),
    Failed(SequenceError),
    /// Cancelled by its caller (`abort` false) or by the server (`abort` true).
    Cancelled {
        abort: bool,
    },
}
