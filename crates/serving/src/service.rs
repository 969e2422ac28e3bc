use crate::job::{Command, EmbeddingJob, Job, Sequence, Ticket};
use crate::metrics::Metrics;
use crate::{Health, Limits, Named, Phase, worker};
use models::{Engine, Pooling, StepBudget, Usage};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

/// What went wrong while an engine was built; it is told to whoever waits for the service to end.
pub type BuildError = Box<dyn std::error::Error + Send + Sync>;

/// Builds the engine, on the thread that will own it.
pub type Build = Box<dyn FnOnce() -> Result<Box<dyn Engine>, BuildError> + Send>;

/// How a service is run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What it takes on.
    pub limits: Limits,
    /// How much is done in a step; the engine's own where there is none.
    pub step_tokens: Option<usize>,
    /// Slots of the engine that are for states behind beginnings of prompts; none without a prefix cache.
    pub snapshots: usize,
    /// Bytes of the host's memory for preempted requests and for such states that lose their slots.
    pub swap_space: u64,
    /// Share of the requests that begin with such a state whose first token is computed from nothing as well, and compared.
    pub verify_cache: f64,
    /// What metrics are labelled with.
    pub named: Named,
    /// When the process began, as near as the system tells.
    pub process_start: Instant,
}

/// Why a submission was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It could never run.
    #[error("{what}")]
    Invalid {
        /// What is wrong.
        what: String,
    },
    /// A prompt, or a prompt with what is to be added, is longer than the context.
    #[error("{what}")]
    TooLong {
        /// The lengths.
        what: String,
    },
    /// As many as may wait are waiting.
    #[error("the queue is full")]
    Full {
        /// When to ask again.
        after: Duration,
    },
    /// The model is not there yet.
    #[error("the model is loading")]
    Loading,
    /// The server stops.
    #[error("the server is shutting down")]
    Draining,
    /// The engine is gone.
    #[error("the engine failed: {0}")]
    Failed(String),
}

/// A model that answers, for as many callers as want it.
#[derive(Clone)]
pub struct Service {
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
}

/// What callers and the engine's thread both look at.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) metrics: Metrics,
    pub(crate) abort: AtomicBool,
    phase: watch::Sender<Phase>,
    places: Arc<Semaphore>,
    seen: Mutex<Seen>,
}

/// What the engine's thread last said of itself.
#[derive(Debug)]
struct Seen {
    usage: Usage,
    failed_steps: u64,
    last_error: Option<(String, Instant)>,
    since: Instant,
}

impl Service {
    /// Begins to build an engine, on a thread of its own. Its end gives why it could not be built, or what it failed of.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(
        settings: Settings,
        build: Build,
    ) -> std::io::Result<(Self, JoinHandle<Result<(), BuildError>>)> {
        let open = settings.limits.open();
        // No more submissions can be on their way than there are places, and a word to wake up.
        let (sender, receiver) = mpsc::channel(open.min(Semaphore::MAX_PERMITS / 2) + 1);
        let usage = Usage { free_slots: settings.limits.sequences, ..Usage::default() };
        let seen = Seen { usage, failed_steps: 0, last_error: None, since: Instant::now() };
        let shared = Arc::new(Shared {
            metrics: Metrics::new(&settings),
            abort: AtomicBool::new(false),
            phase: watch::Sender::new(Phase::Loading),
            places: Arc::new(Semaphore::new(open.min(Semaphore::MAX_PERMITS))),
            seen: Mutex::new(seen),
            settings,
        });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("engine".to_owned());
        let thread = thread.spawn(move || worker::run(&own, receiver, build))?;
        Ok((Self { shared, commands: sender }, thread))
    }

    /// Takes sequences, which begin once the engine has room for them, or refuses all of them.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn submit(&self, sequences: Vec<Sequence>) -> Result<Ticket, Refusal> {
        let limits = &self.shared.settings.limits;
        limits.check(&sequences)?;
        let mut places = self.places(sequences.len())?;
        // Room for all that may come: the engine never waits for a slow reader, and what is kept is bounded by what was asked.
        let most: usize = sequences.iter().map(|sequence| sequence.request.limit + 4).sum();
        let (updates, receiver) = mpsc::channel(most.min(Semaphore::MAX_PERMITS));
        let arrived = Instant::now();
        let mut enough = Vec::with_capacity(sequences.len());
        let mut jobs = Vec::with_capacity(sequences.len());
        for (index, sequence) in sequences.into_iter().enumerate() {
            let flag = Arc::new(AtomicBool::new(false));
            enough.push(Arc::clone(&flag));
            // There are as many places as sequences.
            let Some(place) = places.split(1) else { break };
            let updates = updates.clone();
            jobs.push(Job { index, sequence, updates, enough: flag, arrived, _place: place });
        }
        // The thread ends between a look at its phase and this: then nobody reads.
        if self.commands.try_send(Command::Submit(jobs)).is_err() {
            return Err(Refusal::Draining);
        }
        Ok(Ticket { updates: receiver, enough, arrived })
    }

    /// Takes texts, whose vectors arrive one by one, or refuses all of them. Together they take one place.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn embed(&self, texts: Vec<Vec<u32>>, pooling: Pooling) -> Result<Ticket, Refusal> {
        self.shared.settings.limits.check_texts(&texts)?;
        let place = self.places(1)?;
        let (updates, receiver) = mpsc::channel(texts.len().min(Semaphore::MAX_PERMITS));
        let arrived = Instant::now();
        let job = EmbeddingJob { texts, pooling, updates, place };
        if self.commands.try_send(Command::Embed(job)).is_err() {
            return Err(Refusal::Draining);
        }
        Ok(Ticket { updates: receiver, enough: Vec::new(), arrived })
    }

    /// Takes places for sequences, where the service takes any.
    fn places(&self, count: usize) -> Result<OwnedSemaphorePermit, Refusal> {
        match self.phase() {
            Phase::Ready => {}
            Phase::Loading => return Err(Refusal::Loading),
            Phase::Draining | Phase::Stopped => return Err(Refusal::Draining),
            Phase::Failed(what) => return Err(Refusal::Failed(what)),
        }
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let places = Arc::clone(&self.shared.places).try_acquire_many_owned(count);
        places.map_err(|_| Refusal::Full { after: self.shared.metrics.until_a_place() })
    }

    /// Takes no more submissions; the engine ends with the last one that is open.
    pub fn drain(&self) {
        self.shared.set_phase(Phase::Draining);
        self.wake();
    }

    /// Ends what is still open: [`crate::Why::Aborted`].
    pub fn abort(&self) {
        self.shared.abort.store(true, Ordering::Relaxed);
        self.wake();
    }

    fn wake(&self) {
        // Where there is no room for the word, there is something else to wake up by.
        let _ = self.commands.try_send(Command::Wake);
    }

    /// What it is doing.
    pub fn phase(&self) -> Phase {
        self.shared.phase.borrow().clone()
    }

    /// Waits until the engine's thread has ended.
    pub async fn over(&self) {
        let mut phase = self.shared.phase.subscribe();
        // The sender is in `shared`, which this holds.
        let _ = phase.wait_for(Phase::is_over).await;
    }

    /// Waits until the model is there, or cannot be.
    pub async fn loaded(&self) {
        let mut phase = self.shared.phase.subscribe();
        let _ = phase.wait_for(|phase| *phase != Phase::Loading).await;
    }

    /// How it is.
    pub fn health(&self) -> Health {
        let seen = self.shared.seen();
        let Usage { running, waiting, snapshots, free_blocks, blocks, .. } = seen.usage;
        let Usage { saved_snapshots, saved_snapshot_bytes, preempted_bytes, swap_space, .. } =
            seen.usage;
        Health {
            phase: self.phase(),
            failed_steps: seen.failed_steps,
            last_error: seen.last_error.clone(),
            running,
            waiting,
            free_slots: self.limits().sequences.saturating_sub(running),
            snapshots,
            most_snapshots: self.shared.settings.snapshots,
            saved_snapshots,
            swapped_bytes: saved_snapshot_bytes + preempted_bytes,
            swap_space,
            free_blocks,
            blocks,
            prompt_tokens: self.shared.metrics.prompt_tokens(),
            generation_tokens: self.shared.metrics.generation_tokens(),
            cached_tokens: self.shared.metrics.cached_tokens(),
            since: seen.since,
        }
    }

    /// Sequences that are open: running, waiting, or on their way.
    pub fn open(&self) -> usize {
        self.limits().open().saturating_sub(self.shared.places.available_permits())
    }

    /// What it takes on.
    pub fn limits(&self) -> Limits {
        self.shared.settings.limits
    }

    /// Counts a submission's settings, which its sequences have in common.
    pub fn count_settings(&self, choices: usize, max_tokens: usize) {
        self.shared.metrics.settings(choices, max_tokens);
    }

    /// All metrics, in the OpenMetrics text format.
    pub fn metrics(&self) -> String {
        self.shared.metrics.encode()
    }
}

impl Shared {
    /// Goes on to a phase: never back, and never away from an end.
    pub(crate) fn set_phase(&self, next: Phase) {
        self.phase.send_if_modified(|phase| {
            let stays = phase.is_over()
                || *phase == next
                || (next == Phase::Ready && *phase != Phase::Loading);
            if !stays {
                *phase = next;
            }
            !stays
        });
    }

    /// Whether no more submissions are taken.
    pub(crate) fn ends(&self) -> bool {
        !matches!(*self.phase.borrow(), Phase::Ready | Phase::Loading)
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn see(&self, usage: Usage) {
        self.seen().usage = usage;
        self.metrics.usage(&usage);
    }

    pub(crate) fn see_error(&self, error: &str) {
        let mut seen = self.seen();
        seen.failed_steps += 1;
        seen.last_error = Some((error.to_owned(), Instant::now()));
        self.metrics.step_failed();
    }

    /// How much an engine is given to do in a step.
    pub(crate) fn budget(&self, best: StepBudget) -> StepBudget {
        match self.settings.step_tokens {
            Some(tokens) => StepBudget { tokens, beside: best.beside.min(tokens), ..best },
            None => best,
        }
    }
}
