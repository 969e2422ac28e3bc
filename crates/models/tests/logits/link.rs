//! Copies over a link that takes time: no step waits for one, and only copies that pay off are made.

use crate::eager::Eager;
use crate::subject::tokens;
use architectures::Architecture;
use device::Device;
use facts::BackendKind;
use models::{
    Batch, Capacity, Choice, Engine, LogitsOf, LogitsSelection, Model, ModelError, Pages, Request,
    RequestId, SampledTokens, Sampling, SavedSequence, Scheduler, SchedulerEvent, StepBudget,
    Storage, open, shape,
};
use serde_json::Value;
use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const NAME: &str = "granite-hybrid-mini";
const BUDGET: StepBudget = StepBudget {
    tokens: 150,
    max_mixed_tokens: 60,
    max_mixed_step: Duration::MAX,
    decode_steps_in_flight: 1,
};

/// An engine with a simulated link.
struct Link {
    inner: Box<dyn Engine>,
    /// Whether copies to the host are in progress, so that another one would wait.
    busy: bool,
    /// Number of polls after which a restored sequence has arrived.
    polls: Cell<usize>,
    per_second: Arc<Mutex<Option<f64>>>,
    saves: usize,
    restores: usize,
}

impl Link {
    fn new(sequences: usize) -> Self {
        let config = shape(NAME).unwrap().with("tie_word_embeddings", Value::Bool(false));
        let device = backends::open(BackendKind::Cpu).unwrap();
        let capacity = Capacity { sequences, tokens: 320 };
        let engine = open(Model::random(&config, 3).unwrap(), device, Storage::F32, capacity);
        let inner = Box::new(Eager::new(engine.unwrap()));
        let (busy, polls, per_second) = (false, Cell::new(0), Arc::default());
        Self { inner, busy, polls, per_second, saves: 0, restores: 0 }
    }
}

impl Engine for Link {
    fn architecture(&self) -> &Architecture {
        self.inner.architecture()
    }
    fn device(&self) -> &Device {
        self.inner.device()
    }
    fn read_bandwidth(&self) -> f64 {
        self.inner.read_bandwidth()
    }
    fn pages(&self) -> &Pages {
        self.inner.pages()
    }
    fn step(&mut self, batch: &Batch, wanted: LogitsSelection) -> Result<Vec<f32>, ModelError> {
        self.inner.step(batch, wanted)
    }
    fn choose(
        &mut self,
        batch: &Batch,
        how: &[Option<Choice<'_>>],
        count: usize,
    ) -> Result<Vec<SampledTokens>, ModelError> {
        self.inner.choose(batch, how, count)
    }
    fn reset(&mut self, sequence: usize) {
        self.inner.reset(sequence);
    }
    fn fork(&mut self, from: usize, to: usize, keep: bool) -> Result<(), ModelError> {
        self.inner.fork(from, to, keep)
    }
    fn bytes_of(&self, tokens: usize) -> u64 {
        self.inner.bytes_of(tokens)
    }
    fn can_save(&self, _sequence: usize) -> bool {
        !self.busy
    }
    fn has_arrived(&mut self, _sequence: usize) -> bool {
        let left = self.polls.get();
        self.polls.set(left.saturating_sub(1));
        left == 0
    }
    fn bytes_per_second(&self) -> Option<f64> {
        *self.per_second.lock().unwrap()
    }
    fn save(&mut self, sequence: usize) -> Result<SavedSequence, ModelError> {
        self.saves += 1;
        self.inner.save(sequence)
    }
    fn restore(&mut self, saved: &SavedSequence, to: usize) -> Result<(), ModelError> {
        self.restores += 1;
        self.inner.restore(saved, to)
    }
}

fn request(seed: u32, limit: usize) -> Request {
    Request {
        prompt: tokens(seed, 140),
        limit,
        sampling: Sampling::default(),
        stop_ids: Vec::new(),
        keep: false,
        shared: 0,
        turn: false,
        bypass_cache: false,
        logits: LogitsOf::None,
    }
}

/// Runs one request to its end; returns whether it started from a copy on the host.
fn ask(scheduler: &mut Scheduler<'_>, request: Request) -> bool {
    scheduler.submit(request).unwrap();
    let mut from_host = false;
    while !scheduler.is_idle() {
        for event in scheduler.step().unwrap() {
            from_host |= matches!(event, SchedulerEvent::Begun { from_host: true, .. });
        }
    }
    from_host
}

#[test]
fn snapshot_is_dropped_if_its_copy_would_wait() {
    let mut link = Link { busy: true, ..Link::new(3) };
    let mut scheduler = Scheduler::new(&mut link, BUDGET).with_prefix_cache(1);
    scheduler.set_swap_space(1 << 30).unwrap();
    for seed in 20..24 {
        ask(&mut scheduler, request(seed, 2));
    }
    assert_eq!((scheduler.usage().snapshots, scheduler.usage().saved_snapshots), (1, 0));
    drop(scheduler);
    assert_eq!(link.saves, 0);
}

#[test]
fn other_sequences_continue_during_a_swap_in() {
    let mut link = Link::new(4);
    link.polls.set(5);
    let mut scheduler = Scheduler::new(&mut link, BUDGET).with_prefix_cache(1);
    scheduler.set_swap_space(1 << 30).unwrap();
    // The second takes the slot of the first one's snapshot, which is on the host from then on.
    ask(&mut scheduler, request(20, 2));
    ask(&mut scheduler, request(21, 2));
    let long = scheduler.submit(Request { prompt: tokens(9, 3), ..request(0, 30) }).unwrap();
    let tokens_of = |events: &[SchedulerEvent], of: RequestId| {
        events
            .iter()
            .filter(
                |event| matches!(event, SchedulerEvent::Token { request, .. } if *request == of),
            )
            .count()
    };
    scheduler.step().unwrap();
    let comes = scheduler.submit(request(20, 2)).unwrap();
    let (mut others, mut first) = (0, None);
    for step in 0.. {
        let events = scheduler.step().unwrap();
        others += tokens_of(&events, long);
        if tokens_of(&events, comes) > 0 {
            first = Some(step);
            break;
        }
    }
    assert!(first >= Some(5) && others >= 5, "{first:?}, {others}");
}

#[test]
fn copy_slower_than_prefill_is_not_made() {
    for (per_second, expect) in [(Some(1e18), true), (Some(1.0), false), (None, true)] {
        let mut link = Link::new(3);
        *link.per_second.lock().unwrap() = per_second;
        // Full steps measure the time per token.
        let budget = StepBudget { tokens: 32, ..BUDGET };
        let mut scheduler = Scheduler::new(&mut link, budget).with_prefix_cache(1);
        scheduler.set_swap_space(1 << 30).unwrap();
        ask(&mut scheduler, request(20, 2));
        ask(&mut scheduler, request(21, 2));
        assert_eq!(ask(&mut scheduler, request(20, 2)), expect, "{per_second:?}");
        drop(scheduler);
        assert_eq!((link.saves > 0, link.restores > 0), (expect, expect), "{per_second:?}");
    }
}

#[test]
fn copy_slower_than_prefill_is_not_restored() {
    let mut link = Link::new(3);
    let per_second = Arc::clone(&link.per_second);
    let budget = StepBudget { tokens: 32, ..BUDGET };
    let mut scheduler = Scheduler::new(&mut link, budget).with_prefix_cache(1);
    scheduler.set_swap_space(1 << 30).unwrap();
    ask(&mut scheduler, request(20, 2));
    ask(&mut scheduler, request(21, 2));
    // The link is slower than when the copy was made.
    *per_second.lock().unwrap() = Some(1.0);
    assert!(!ask(&mut scheduler, request(20, 2)));
    drop(scheduler);
    assert!(link.saves > 0 && link.restores == 0);
}
