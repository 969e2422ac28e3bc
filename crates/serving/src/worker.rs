//! The engine's thread: takes submissions, looks who has gone, steps, and hands out what came of it.

use crate::embeddings::OpenEmbeddings;
use crate::grammar::{Bound, Failure};
use crate::job::{Command, Job, Update, Why};
use crate::post::Post;
use crate::second_look::SecondLooks;
use crate::service::Shared;
use crate::times::Times;
use crate::{Build, BuildError, Phase, blame, logprobs};
use models::{
    Ended, Event, Guide, Logits, LogitsOf, ModelError, Request, RequestId, Scheduler, Usage,
};
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::sync::mpsc::{self, error::TryRecvError};

/// Builds the engine and serves until there is nothing to do and nothing more comes, or the device is lost.
pub(crate) fn run(
    shared: &Shared,
    commands: mpsc::Receiver<Command>,
    build: Build,
) -> Result<(), BuildError> {
    // Whatever panics here: nobody waits for a thread that is gone.
    let ends = Ends(shared);
    let served = build().and_then(|mut engine| {
        shared.metrics.built(engine.pages(), engine.budget());
        let budget = shared.budget(engine.budget());
        let mut scheduler =
            Scheduler::new(&mut *engine, budget).with_prefix_cache(shared.settings.snapshots);
        scheduler.set_swap_space(shared.settings.swap_space)?;
        shared.see(scheduler.usage());
        shared.set_phase(Phase::Ready);
        let looks = SecondLooks::new(shared.settings.verify_cache);
        std::thread::scope(|scope| {
            let post = Post::within(scope);
            let (open, embeddings) = (BTreeMap::new(), OpenEmbeddings::default());
            let mut worker = Worker { shared, commands, scheduler, open, looks, embeddings, post };
            worker.serve().map_err(BuildError::from)
        })
    });
    if let Err(error) = &served {
        shared.set_phase(Phase::Failed(error.to_string()));
    }
    drop(ends);
    served
}

/// Says that the thread has ended, however it does.
struct Ends<'a>(&'a Shared);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        // Of a failure the first word stays.
        self.0.set_phase(match std::thread::panicking() {
            true => Phase::Failed("the engine's thread panicked".to_owned()),
            false => Phase::Stopped,
        });
    }
}

/// A sequence that has not ended.
pub(crate) struct Open {
    job: Job,
    times: Times,
    /// Where its guide says why it cannot go on.
    failed: Option<Failure>,
    /// Whether it begins with a state that is to be looked at again.
    looked_at: bool,
}

impl Open {
    fn failure(&self) -> Option<String> {
        self.failed.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub(crate) struct Worker<'a> {
    pub(crate) shared: &'a Shared,
    commands: mpsc::Receiver<Command>,
    pub(crate) scheduler: Scheduler<'a>,
    pub(crate) open: BTreeMap<RequestId, Open>,
    looks: SecondLooks,
    pub(crate) embeddings: OpenEmbeddings,
    post: Post,
}

impl Worker<'_> {
    fn serve(&mut self) -> Result<(), ModelError> {
        loop {
            self.post.send();
            self.take_commands();
            self.forget_who_left();
            if self.scheduler.is_idle() {
                if self.shared.ends() {
                    return Ok(());
                }
                continue;
            }
            self.post.send();
            self.step()?;
        }
    }

    /// Takes what has come; waits for something where there is nothing to do.
    fn take_commands(&mut self) {
        if self.scheduler.is_idle() && !self.shared.ends() {
            match self.next_command() {
                Some(command) => self.take(command),
                None => self.shared.set_phase(Phase::Draining),
            }
        }
        while let Ok(command) = self.commands.try_recv() {
            self.take(command);
        }
    }

    /// Waits for a command; until one comes, the scheduler does one thing after the other for later.
    fn next_command(&mut self) -> Option<Command> {
        loop {
            match self.commands.try_recv() {
                Ok(command) => return Some(command),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) if self.scheduler.prepare() => {
                    self.shared.see(self.scheduler.usage());
                }
                Err(TryRecvError::Empty) => return self.commands.blocking_recv(),
            }
        }
    }

    fn take(&mut self, command: Command) {
        let jobs = match command {
            Command::Submit(jobs) => jobs,
            Command::Embed(job) => {
                self.embeddings.begin(&mut self.scheduler, job);
                return self.shared.see(self.scheduler.usage());
            }
            Command::Wake => return,
        };
        for mut job in jobs {
            let bound = job.sequence.guide.take();
            let failed = bound.as_ref().map(Bound::failure);
            let guide = bound.map(|bound| Box::new(bound) as Box<dyn Guide>);
            let rules = std::mem::take(&mut job.sequence.rules);
            let guide = rules.guide(&job.sequence.request.stop_ids, guide);
            let logits = match job.sequence.logprobs {
                Some(_) => LogitsOf::All,
                None if self.looks.wanted() => LogitsOf::First,
                None => LogitsOf::None,
            };
            let request = Request { logits, ..job.sequence.request.clone() };
            let scores = job.sequence.score_prompt.then(|| job.sequence.logprobs.unwrap_or(0));
            match self.scheduler.submit_guided(request, guide, scores) {
                Ok(id) => {
                    let times = Times::new(job.arrived, job.sequence.request.prompt.len());
                    self.open.insert(id, Open { job, times, failed, looked_at: false });
                }
                // Limits are checked before; what the scheduler knows beside them is told as its own error.
                Err(error) => {
                    let why = Why::Engine(error.to_string());
                    self.post.add(&job, Update::Failed { index: job.index, why });
                }
            }
        }
        self.shared.see(self.scheduler.usage());
    }

    /// Ends the sequences that nobody waits for, and all of them when the server waits no longer.
    pub(crate) fn forget_who_left(&mut self) {
        let abort = self.shared.abort.load(Ordering::Relaxed);
        let ending = |open: &Open| {
            if abort || open.job.updates.is_closed() {
                return Some(Ending::Left { abort });
            }
            let enough = open.job.enough.load(Ordering::Relaxed);
            enough.then_some(Ending::Finished(Ended::Listener))
        };
        self.embeddings.forget_who_left(&mut self.scheduler, abort);
        let gone = self.open.iter().filter_map(|(id, open)| Some((*id, ending(open)?)));
        let gone: Vec<_> = gone.collect();
        let any = !gone.is_empty();
        for (id, ending) in gone {
            self.end(id, ending);
        }
        // Where nothing is left to do, no step says it.
        if any {
            self.shared.see(self.scheduler.usage());
        }
    }

    /// One step, and what came of it; a step that fails ends those that are to blame.
    fn step(&mut self) -> Result<(), ModelError> {
        let began = Instant::now();
        match self.scheduler.step() {
            Ok(events) => {
                self.stepped(began, &events);
                Ok(())
            }
            Err(error) => blame::find(self, error),
        }
    }

    /// Takes what came of a step.
    pub(crate) fn stepped(&mut self, began: Instant, events: &[Event]) {
        // Whoever has a slot now, or has ended in this step, began with it at the latest.
        let running: Vec<RequestId> = self.scheduler.running().collect();
        let told = events.iter().filter(|event| !matches!(event, Event::Preempted { .. }));
        for id in running.into_iter().chain(told.map(Event::request)) {
            if let Some(open) = self.open.get_mut(&id) {
                open.times.begin(began);
            }
        }
        self.hand_out(events);
        self.shared.metrics.iteration(self.scheduler.stepped());
        self.shared.see(self.scheduler.usage());
    }

    /// Tells callers of events.
    pub(crate) fn hand_out(&mut self, events: &[Event]) {
        let now = Instant::now();
        let mut together: Option<RequestId> = None;
        for event in events {
            let id = event.request();
            match event {
                Event::Begun { reused, from_host, lost, .. } => {
                    self.begun(id, *reused, *from_host, *lost);
                }
                Event::Scored { .. } => self.scored(id),
                Event::Token { token, logits, .. } => {
                    let first_of_step = together != Some(id);
                    together = Some(id);
                    self.token(id, *token, *logits, first_of_step.then_some(now));
                }
                Event::Finished { ended, .. } => {
                    let failure = self.open.get(&id).and_then(Open::failure);
                    let ending = match failure {
                        Some(words) => Ending::Failed(Why::Form(words)),
                        None if *ended == Ended::NoToken => {
                            self.shared.see_error("logits of a sequence are not numbers");
                            let words = "the model's logits for this sequence are not numbers";
                            Ending::Failed(Why::Engine(words.to_owned()))
                        }
                        None => Ending::Finished(*ended),
                    };
                    self.end(id, ending);
                }
                Event::Embedded { .. } => self.embeddings.hand_out(&mut self.scheduler, id),
                Event::Preempted { saved, .. } => self.shared.metrics.preempted(*saved),
            }
        }
    }

    /// Says where a sequence begins; where it begins again changes nothing.
    fn begun(&mut self, id: RequestId, cached: usize, from_host: bool, lost: usize) {
        let Some(open) = self.open.get_mut(&id) else { return };
        if open.times.found(&self.shared.metrics, cached, from_host, lost) {
            open.looked_at = cached > 0 && self.looks.due();
            self.post.add(&open.job, Update::Begun { index: open.job.index, cached });
        }
    }

    /// Hands out the log-probabilities of a prompt.
    fn scored(&mut self, id: RequestId) {
        let scores = self.scheduler.take_scores(id);
        if let Some((open, logprobs)) = self.open.get(&id).zip(scores) {
            self.post.add(&open.job, Update::Prompt { index: open.job.index, logprobs });
        }
    }

    /// Hands out a token. `now` for the first of those that come together.
    fn token(&mut self, id: RequestId, token: u32, of: Option<Logits>, now: Option<Instant>) {
        if let Some(second) = of.and_then(|of| self.scheduler.logits(of))
            && let Some(same) = self.looks.compare(id, second)
        {
            return self.looked(same);
        }
        let Some(open) = self.open.get_mut(&id) else { return };
        let logits = of.and_then(|of| self.scheduler.logits(of));
        let again = std::mem::take(&mut open.looked_at).then_some(logits).flatten();
        let again = again.map(|logits| (open.job.sequence.request.prompt.clone(), logits.to_vec()));
        let wanted = open.job.sequence.logprobs;
        let logprobs = wanted.zip(logits).map(|(count, logits)| logprobs::of(logits, token, count));
        open.times.token(&self.shared.metrics, now);
        let update = Update::Token { index: open.job.index, token, logprobs };
        self.post.add(&open.job, update);
        if let Some((prompt, logits)) = again {
            self.looks.begin(&mut self.scheduler, prompt, logits);
        }
    }

    /// Takes what a second look at a kept state showed.
    fn looked(&mut self, same: bool) {
        self.shared.metrics.looked(same);
        if !same {
            self.shared.see_error(
                "a kept state gave other logits than its tokens: the prefix cache is off",
            );
            self.scheduler.end_prefix_cache();
        }
    }

    /// Ends a sequence, whatever it still had to do.
    pub(crate) fn end(&mut self, id: RequestId, ending: Ending) {
        if self.looks.forget(id) {
            self.scheduler.cancel(id);
        }
        let Some(Open { job, times, .. }) = self.open.remove(&id) else { return };
        // One that the scheduler itself ended is none of its own any more.
        self.scheduler.cancel(id);
        times.end(&self.shared.metrics, &ending);
        let index = job.index;
        let update = match ending {
            Ending::Finished(ended) => Update::Finished { index, ended },
            Ending::Failed(why) => Update::Failed { index, why },
            Ending::Left { abort: true } => Update::Failed { index, why: Why::Aborted },
            Ending::Left { abort: false } => return,
        };
        self.post.add(&job, update);
    }
}

impl Drop for Worker<'_> {
    /// Nothing is held any more, whatever ended it.
    fn drop(&mut self) {
        let usage = self.scheduler.usage();
        self.shared.see(Usage { running: 0, waiting: 0, free_slots: 0, ..usage });
    }
}

/// How a sequence ends.
#[derive(Debug, Clone)]
pub(crate) enum Ending {
    Finished(Ended),
    Failed(Why),
    /// Its caller wants no more of it, or the server waits no longer.
    Left {
        abort: bool,
    },
}
