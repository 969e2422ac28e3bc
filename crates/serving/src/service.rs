use crate::job::{Command, EmbeddingJob, Job, Sequence, Ticket};
use crate::metrics::Metrics;
use crate::{MetricLabels, ServiceHealth, ServiceLimits, ServicePhase, worker};
use models::{Engine, PoolingMode, StepBudget, Usage};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

/// The error of building or running an engine, returned by the thread that [`Service::start`] spawns.
pub type EngineError = Box<dyn std::error::Error + Send + Sync>;

/// Builds the engine on the thread that will own it.
pub type EngineBuilder = Box<dyn FnOnce() -> Result<Box<dyn Engine>, EngineError> + Send>;

/// The settings of a service.
#[derive(Debug, Clone)]
pub struct ServiceSettings {
    /// The limits of what it accepts.
    pub limits: ServiceLimits,
    /// Tokens per step; `None` for the engine's default.
    pub step_tokens: Option<usize>,
    /// Slots of the engine reserved for states of prompt prefixes; 0 disables the prefix cache.
    pub snapshots: usize,
    /// Bytes of host memory for preempted requests and evicted prefix states.
    pub swap_space: u64,
    /// Share of the prefix cache hits that are verified by recomputing the first token's logits.
    pub verify_cache: f64,
    /// The labels of all metrics.
    pub labels: MetricLabels,
    /// When the process started, as precisely as the system reports it.
    pub process_start: Instant,
}

/// Why a submission was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// It can never run.
    #[error("{what}")]
    Invalid {
        /// The reason.
        what: String,
    },
    /// A prompt, or a prompt with its generated tokens, is longer than the context.
    #[error("{what}")]
    TooLong {
        /// The lengths.
        what: String,
    },
    /// The queue is full.
    #[error("the queue is full")]
    Full {
        /// When to retry.
        after: Duration,
    },
    /// The engine is not built yet.
    #[error("the model is loading")]
    Loading,
    /// The server is shutting down.
    #[error("the server is shutting down")]
    Draining,
    /// The engine failed.
    #[error("the engine failed: {0}")]
    Failed(String),
}

/// A handle to a running model; clones share it.
#[derive(Clone)]
pub struct Service {
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
}

/// State shared by callers and the engine's thread.
pub(crate) struct Shared {
    pub(crate) settings: ServiceSettings,
    pub(crate) metrics: Metrics,
    pub(crate) abort: AtomicBool,
    phase: watch::Sender<ServicePhase>,
    permits: Arc<Semaphore>,
    engine_status: Mutex<EngineStatus>,
}

/// The last status that the engine's thread stored.
#[derive(Debug)]
struct EngineStatus {
    usage: Usage,
    failed_steps: u64,
    last_error: Option<(String, Instant)>,
    since: Instant,
}

impl Service {
    /// Spawns the thread that builds and runs the engine. The thread's result is the error of building the engine or of
    /// running it.
    ///
    /// # Errors
    /// When the system cannot create a thread.
    pub fn start(
        settings: ServiceSettings,
        build: EngineBuilder,
    ) -> std::io::Result<(Self, JoinHandle<Result<(), EngineError>>)> {
        let open = settings.limits.open();
        // One message per open sequence at most, plus one to wake the thread.
        let (sender, receiver) = mpsc::channel(open.min(Semaphore::MAX_PERMITS / 2) + 1);
        let usage = Usage { free_slots: settings.limits.sequences, ..Usage::default() };
        let engine_status =
            EngineStatus { usage, failed_steps: 0, last_error: None, since: Instant::now() };
        let shared = Arc::new(Shared {
            metrics: Metrics::new(&settings),
            abort: AtomicBool::new(false),
            phase: watch::Sender::new(ServicePhase::Loading),
            permits: Arc::new(Semaphore::new(open.min(Semaphore::MAX_PERMITS))),
            engine_status: Mutex::new(engine_status),
            settings,
        });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("engine".to_owned());
        let thread = thread.spawn(move || worker::run(&own, receiver, build))?;
        Ok((Self { shared, commands: sender }, thread))
    }

    /// Submits sequences, all or none. They start once the engine has room for them.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn submit(&self, sequences: Vec<Sequence>) -> Result<Ticket, SubmitError> {
        let limits = &self.shared.settings.limits;
        limits.check(&sequences)?;
        let mut permits = self.reserve_permits(sequences.len())?;
        // Room for all updates: the engine never waits for a slow reader, and the buffer is bounded by what the request
        // asks for.
        let most: usize = sequences.iter().map(|sequence| sequence.request.limit + 4).sum();
        let (updates, receiver) = mpsc::channel(most.min(Semaphore::MAX_PERMITS));
        let arrived = Instant::now();
        let mut stop = Vec::with_capacity(sequences.len());
        let mut jobs = Vec::with_capacity(sequences.len());
        for (index, sequence) in sequences.into_iter().enumerate() {
            let flag = Arc::new(AtomicBool::new(false));
            stop.push(Arc::clone(&flag));
            // There are as many permits as sequences.
            let Some(permit) = permits.split(1) else { break };
            let updates = updates.clone();
            jobs.push(Job { index, sequence, updates, stop: flag, arrived, _permit: permit });
        }
        // The thread can end after the check of its phase and before this line.
        if self.commands.try_send(Command::Submit(jobs)).is_err() {
            return Err(SubmitError::Draining);
        }
        Ok(Ticket { updates: receiver, stop, arrived })
    }

    /// Submits texts to embed, all or none. Their embeddings arrive one by one. All texts together use one permit.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub fn embed(&self, texts: Vec<Vec<u32>>, pooling: PoolingMode) -> Result<Ticket, SubmitError> {
        self.shared.settings.limits.check_texts(&texts)?;
        let permit = self.reserve_permits(1)?;
        let (updates, receiver) = mpsc::channel(texts.len().min(Semaphore::MAX_PERMITS));
        let arrived = Instant::now();
        let job = EmbeddingJob { texts, pooling, updates, permit };
        if self.commands.try_send(Command::Embed(job)).is_err() {
            return Err(SubmitError::Draining);
        }
        Ok(Ticket { updates: receiver, stop: Vec::new(), arrived })
    }

    /// Reserves permits for sequences if the service accepts requests.
    fn reserve_permits(&self, count: usize) -> Result<OwnedSemaphorePermit, SubmitError> {
        match self.phase() {
            ServicePhase::Ready => {}
            ServicePhase::Loading => return Err(SubmitError::Loading),
            ServicePhase::Draining | ServicePhase::Stopped => return Err(SubmitError::Draining),
            ServicePhase::Failed(what) => return Err(SubmitError::Failed(what)),
        }
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let permits = Arc::clone(&self.shared.permits).try_acquire_many_owned(count);
        permits.map_err(|_| SubmitError::Full { after: self.shared.metrics.retry_after() })
    }

    /// Stops accepting submissions; the engine stops after the last open one.
    pub fn drain(&self) {
        self.shared.set_phase(ServicePhase::Draining);
        self.wake();
    }

    /// Ends all open sequences with [`crate::SequenceError::Aborted`].
    pub fn abort(&self) {
        self.shared.abort.store(true, Ordering::Relaxed);
        self.wake();
    }

    fn wake(&self) {
        // If the queue is full, the message at its head wakes the thread.
        let _ = self.commands.try_send(Command::Wake);
    }

    /// The current phase.
    pub fn phase(&self) -> ServicePhase {
        self.shared.phase.borrow().clone()
    }

    /// Waits until the engine's thread has ended.
    pub async fn stopped(&self) {
        let mut phase = self.shared.phase.subscribe();
        // The sender is in `shared`, which `self` owns.
        let _ = phase.wait_for(ServicePhase::is_over).await;
    }

    /// Waits until the engine is built, or building it failed.
    pub async fn loaded(&self) {
        let mut phase = self.shared.phase.subscribe();
        let _ = phase.wait_for(|phase| *phase != ServicePhase::Loading).await;
    }

    /// The current health.
    pub fn health(&self) -> ServiceHealth {
        let engine_status = self.shared.engine_status();
        let Usage { running, waiting, snapshots, free_blocks, blocks, .. } = engine_status.usage;
        let Usage { saved_snapshots, saved_snapshot_bytes, preempted_bytes, swap_space, .. } =
            engine_status.usage;
        ServiceHealth {
            phase: self.phase(),
            failed_steps: engine_status.failed_steps,
            last_error: engine_status.last_error.clone(),
            running,
            waiting,
            free_slots: self.limits().sequences.saturating_sub(running),
            snapshots,
            max_snapshots: self.shared.settings.snapshots,
            saved_snapshots,
            swapped_bytes: saved_snapshot_bytes + preempted_bytes,
            swap_space,
            free_blocks,
            blocks,
            prompt_tokens: self.shared.metrics.prompt_tokens(),
            generation_tokens: self.shared.metrics.generation_tokens(),
            cached_tokens: self.shared.metrics.cached_tokens(),
            since: engine_status.since,
        }
    }

    /// Sequences that are open: running, waiting, or in the queue to the engine's thread.
    pub fn open(&self) -> usize {
        self.limits().open().saturating_sub(self.shared.permits.available_permits())
    }

    /// The limits of what the service accepts.
    pub fn limits(&self) -> ServiceLimits {
        self.shared.settings.limits
    }

    /// Records the parameters of a request in the metrics, once for all of its sequences.
    pub fn count_settings(&self, choices: usize, max_tokens: usize) {
        self.shared.metrics.settings(choices, max_tokens);
    }

    /// All metrics, in the OpenMetrics text format.
    pub fn metrics(&self) -> String {
        self.shared.metrics.encode()
    }
}

impl Shared {
    /// Advances to a phase. Phases never go backward, and the final ones never change.
    pub(crate) fn set_phase(&self, next: ServicePhase) {
        self.phase.send_if_modified(|phase| {
            let stays = phase.is_over()
                || *phase == next
                || (next == ServicePhase::Ready && *phase != ServicePhase::Loading);
            if !stays {
                *phase = next;
            }
            !stays
        });
    }

    /// Whether submissions are refused permanently.
    pub(crate) fn is_draining(&self) -> bool {
        !matches!(*self.phase.borrow(), ServicePhase::Ready | ServicePhase::Loading)
    }

    fn engine_status(&self) -> std::sync::MutexGuard<'_, EngineStatus> {
        self.engine_status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_usage(&self, usage: Usage) {
        self.engine_status().usage = usage;
        self.metrics.usage(&usage);
    }

    pub(crate) fn record_error(&self, error: &str) {
        let mut engine_status = self.engine_status();
        engine_status.failed_steps += 1;
        engine_status.last_error = Some((error.to_owned(), Instant::now()));
        self.metrics.step_failed();
    }

    /// The tokens per step: the setting if there is one, otherwise the engine's default.
    pub(crate) fn budget(&self, best: StepBudget) -> StepBudget {
        match self.settings.step_tokens {
            Some(tokens) => {
                StepBudget { tokens, max_mixed_tokens: best.max_mixed_tokens.min(tokens), ..best }
            }
            None => best,
        }
    }
}
