//! Swapping sequences to the host and back: nothing is prefilled twice, and answers are the same.

use crate::eager::Eager;
use crate::subject::{Subject, advance, tokens};
use architectures::Architecture;
use device::Device;
use facts::BackendKind;
use models::{
    Batch, Capacity, Engine, LogitsOf, LogitsSelection, Model, ModelError, Pages, Request,
    RequestId, Sampling, SavedSequence, Scheduler, SchedulerEvent, StepBudget, Storage,
    engine_kind, open, shape,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

const BUDGET: StepBudget = StepBudget {
    tokens: 150,
    max_mixed_tokens: 60,
    max_mixed_step: Duration::MAX,
    decode_steps_in_flight: 4,
};
const FAMILIES: [&str; 3] = ["granite-hybrid-mini", "kimi-linear-mini", "jamba-mini"];

#[test]
fn restored_sequence_continues_in_another_slot() {
    // Also on a GPU, if there is one.
    let devices = [BackendKind::Cpu, BackendKind::Cuda].map(backends::open).into_iter().flatten();
    let storages = |device: Device| {
        let kind = engine_kind(&device).unwrap();
        kind.storages.iter().map(|storage| (kind.backend, *storage))
    };
    let kinds: Vec<_> = devices.flat_map(storages).collect();
    for subject in Subject::all() {
        for (backend, storage) in kinds.iter().copied() {
            let device = backends::open(backend).unwrap();
            let mut engine = subject.engine_on(device, storage, 3);
            engine.reserve(64 << 20).unwrap();
            let (first, rest) = (tokens(3, 150), tokens(4, 70));
            // Blocks that are not consecutive.
            advance(&mut *engine, 0, &first[..70], 70);
            advance(&mut *engine, 1, &tokens(5, 70), 70);
            advance(&mut *engine, 0, &first[70..], 80);
            let saved = engine.save(0).unwrap();
            assert_eq!((saved.tokens(), saved.bytes()), (150, engine.bytes_to_save(150)));
            let stayed = advance(&mut *engine, 0, &rest, 7);
            let error = engine.restore(&saved, 1).unwrap_err();
            assert_eq!(error.to_string(), "slot 1 is not empty");
            // Other sequences overwrite its memory.
            engine.reset(0);
            engine.reset(1);
            advance(&mut *engine, 1, &tokens(6, 200), 90);
            advance(&mut *engine, 0, &tokens(7, 200), 90);
            for _ in 0..2 {
                engine.restore(&saved, 2).unwrap();
                assert_eq!(engine.len(2), 150);
                let again = advance(&mut *engine, 2, &rest, 7);
                let same = stayed.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{}, {backend:?}, {storage:?}", subject.name);
                engine.reset(2);
            }
            engine.reset(0);
            engine.reset(1);
            assert_eq!(engine.pages().free_blocks(), engine.pages().blocks());
        }
    }
}

fn engine(name: &str, sequences: usize, tokens: usize) -> Box<dyn Engine> {
    let config = shape(name).unwrap().with("tie_word_embeddings", Value::Bool(false));
    let device = backends::open(BackendKind::Cpu).unwrap();
    let capacity = Capacity { sequences, tokens };
    let engine = open(Model::random(&config, 3).unwrap(), device, Storage::F32, capacity);
    Box::new(Eager::new(engine.unwrap()))
}

fn request(prompt: &[u32], limit: usize) -> Request {
    Request {
        prompt: prompt.to_vec(),
        limit,
        sampling: Sampling::default(),
        stop_ids: Vec::new(),
        keep: false,
        shared: 0,
        turn: false,
        bypass_cache: false,
        logits: LogitsOf::All,
    }
}

/// The answer to a request.
#[derive(Debug, Default, Clone, PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    logits: Vec<f32>,
    /// Cached tokens of its prompt at its first start.
    reused: Option<usize>,
    lost: usize,
    from_host: usize,
    preempted: usize,
    saved: usize,
}

impl Answer {
    /// The distance of its logits from another answer's, up to the first different token: with nearly equal logits
    /// rounding decides.
    fn differs(&self, other: &Self) -> f32 {
        assert_eq!(self.logits.len(), other.logits.len());
        let alike = self.tokens.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count();
        let vocabulary = self.logits.len() / self.tokens.len();
        let pairs = self.logits.iter().zip(&other.logits).take((alike + 1) * vocabulary);
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    }
}

/// Runs requests that arrive together; also returns the tokens that the engine was advanced by.
fn answers(scheduler: &mut Scheduler<'_>, requests: &[Request]) -> (Vec<Answer>, usize) {
    let ids = requests.iter().map(|request| scheduler.submit(request.clone()).unwrap());
    let mut all: BTreeMap<RequestId, Answer> = ids.map(|id| (id, Answer::default())).collect();
    let mut stepped = 0;
    while !scheduler.is_idle() {
        let events = scheduler.step().unwrap();
        stepped += scheduler.stepped();
        for event in events {
            let answer = all.get_mut(&event.request()).unwrap();
            match event {
                SchedulerEvent::Begun { reused, from_host, lost, .. } => {
                    answer.reused.get_or_insert(reused);
                    answer.from_host += usize::from(from_host);
                    answer.lost += lost;
                }
                SchedulerEvent::Token { token, logits, .. } => {
                    answer.tokens.push(token);
                    answer.logits.extend(scheduler.logits(logits.unwrap()).unwrap());
                }
                SchedulerEvent::Scored { .. } => unreachable!("no prompt is scored"),
                SchedulerEvent::Preempted { saved, .. } => {
                    answer.preempted += 1;
                    answer.saved += usize::from(saved);
                }
                SchedulerEvent::Finished { .. } | SchedulerEvent::Embedded { .. } => {}
            }
        }
    }
    (all.into_values().collect(), stepped)
}

fn alone(name: &str, request: &Request) -> Answer {
    let mut engine = engine(name, 1, 400);
    let mut scheduler = Scheduler::new(&mut *engine, BUDGET);
    answers(&mut scheduler, std::slice::from_ref(request)).0.remove(0)
}

fn total(answers: &[Answer], of: impl Fn(&Answer) -> usize) -> usize {
    answers.iter().map(of).sum()
}

/// Four that start with this many blocks each, and each need one more later.
fn crowded(blocks: usize) -> Vec<Request> {
    let prompt = |seed| tokens(seed, 64 * blocks - 40 + seed as usize);
    (10..14).map(|seed| request(&prompt(seed), 70)).collect()
}

#[test]
fn preempted_request_prefills_nothing_twice() {
    for name in FAMILIES {
        let mut engine = engine(name, 4, 128);
        let mut scheduler = Scheduler::new(&mut *engine, BUDGET);
        let requests = crowded(2);
        let needed = requests.iter().map(|request| request.prompt.len() + 69).sum::<usize>();
        let (read_again, stepped) = answers(&mut scheduler, &requests);
        assert!(stepped > needed && total(&read_again, |answer| answer.saved) == 0);
        scheduler.set_swap_space(1 << 30).unwrap();
        let (answered, stepped) = answers(&mut scheduler, &requests);
        assert_eq!(stepped, needed, "{name}");
        let preempted = total(&answered, |answer| answer.preempted);
        let counted = (total(&answered, |answer| answer.saved), preempted);
        assert_eq!(counted, (preempted, total(&answered, |answer| answer.from_host)), "{name}");
        assert!(preempted > 1, "{name}");
        for (request, answer) in requests.iter().zip(&answered) {
            assert!(alone(name, request).differs(answer) <= 1e-5, "{name}");
        }
        let usage = scheduler.usage();
        assert_eq!((usage.preempted_bytes, usage.free_blocks), (0, usage.blocks));
    }
}

#[test]
fn evicted_snapshot_is_restored_from_the_host() {
    for name in FAMILIES {
        let mut engine = engine(name, 3, 320);
        let bytes = engine.bytes_to_save(128);
        let mut scheduler = Scheduler::new(&mut *engine, BUDGET).with_prefix_cache(1);
        let prompts: Vec<Vec<u32>> = (20..25).map(|seed| tokens(seed, 140)).collect();
        let ask = |scheduler: &mut Scheduler<'_>, at: usize| {
            let asked = request(&prompts[at], 3);
            let answer = answers(scheduler, std::slice::from_ref(&asked)).0.remove(0);
            assert!(alone(name, &asked).differs(&answer) <= 1e-5, "{name}, prompt {at}");
            (answer.reused, answer.from_host, answer.lost)
        };
        let (anew, lost) = ((Some(0), 0, 0), (Some(0), 0, 128));
        // Without host memory, the only slot has the last prompt.
        assert_eq!([0, 1, 0].map(|at| ask(&mut scheduler, at)), [anew, anew, lost], "{name}");
        scheduler.set_swap_space(16 * bytes).unwrap();
        assert_eq!([1, 2, 3].map(|at| ask(&mut scheduler, at)), [lost, anew, anew], "{name}");
        // One has the slot; one of the others takes it, and its copy stays.
        let (slot, host) = ((Some(128), 0, 0), (Some(128), 1, 0));
        assert_eq!([3, 1, 1].map(|at| ask(&mut scheduler, at)), [slot, host, slot], "{name}");
        assert_eq!([0, 2, 3].map(|at| ask(&mut scheduler, at)), [host; 3], "{name}");
        let usage = scheduler.usage();
        assert!(usage.snapshots == 1 && usage.saved_snapshots >= 4, "{name}: {usage:?}");
        // With room for one copy, the others are dropped.
        scheduler.set_swap_space(bytes).unwrap();
        assert_eq!(ask(&mut scheduler, 4), anew, "{name}");
        assert!(scheduler.usage().saved_snapshot_bytes <= bytes, "{name}");
        let lost = [0, 1, 2].map(|at| ask(&mut scheduler, at).2);
        assert!(lost.iter().filter(|lost| **lost > 0).count() >= 2, "{name}: {lost:?}");
        // A disabled cache keeps nothing anywhere.
        scheduler.end_prefix_cache();
        let usage = scheduler.usage();
        assert_eq!((usage.snapshots, usage.saved_snapshots), (0, 0));
        assert_eq!((usage.saved_snapshot_bytes, usage.free_blocks), (0, usage.blocks));
    }
}

#[test]
fn preempted_requests_replace_snapshots_on_the_host() {
    let name = FAMILIES[0];
    let mut engine = engine(name, 6, 128);
    let bytes = engine.bytes_to_save(256);
    let mut scheduler = Scheduler::new(&mut *engine, BUDGET).with_prefix_cache(2);
    scheduler.set_swap_space(2 * bytes).unwrap();
    for seed in 30..36 {
        answers(&mut scheduler, &[request(&tokens(seed, 140), 1)]);
    }
    assert!(scheduler.usage().saved_snapshots > 1);
    let requests = crowded(3);
    let (answered, _) = answers(&mut scheduler, &requests);
    assert!(total(&answered, |answer| answer.saved) > 0);
    for (request, answer) in requests.iter().zip(&answered) {
        assert!(alone(name, request).differs(answer) <= 1e-5);
    }
}

/// An engine whose copies fail sometimes.
struct FailingEngine {
    inner: Box<dyn Engine>,
    copies: usize,
}

impl FailingEngine {
    fn fails(&mut self) -> Result<(), ModelError> {
        self.copies += 1;
        match self.copies % 5 {
            0 | 3 => Err(ModelError::Device("a copy failed".to_owned())),
            _ => Ok(()),
        }
    }
}

impl Engine for FailingEngine {
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
    fn reset(&mut self, sequence: usize) {
        self.inner.reset(sequence);
    }
    fn fork(&mut self, from: usize, to: usize, keep: bool) -> Result<(), ModelError> {
        self.inner.fork(from, to, keep)
    }
    fn bytes_of(&self, tokens: usize) -> u64 {
        self.inner.bytes_of(tokens)
    }
    fn save(&mut self, sequence: usize) -> Result<SavedSequence, ModelError> {
        self.fails()?;
        self.inner.save(sequence)
    }
    fn restore(&mut self, saved: &SavedSequence, to: usize) -> Result<(), ModelError> {
        // It is partly restored by then.
        self.inner.restore(saved, to)?;
        self.fails()
    }
}

#[test]
fn failed_copy_is_recomputed() {
    for name in FAMILIES {
        let mut engine = FailingEngine { inner: engine(name, 6, 128), copies: 0 };
        let blocks = engine.pages().free_blocks();
        let mut scheduler = Scheduler::new(&mut engine, BUDGET).with_prefix_cache(2);
        scheduler.set_swap_space(1 << 30).unwrap();
        let (mut saved, mut preempted, mut from_host) = (0, 0, 0);
        for round in 0..4 {
            let mut requests = crowded(3);
            requests.extend((40..44).map(|seed| request(&tokens(seed, 140 + round), 20)));
            let (answered, _) = answers(&mut scheduler, &requests);
            saved += total(&answered, |answer| answer.saved);
            preempted += total(&answered, |answer| answer.preempted);
            from_host += total(&answered, |answer| answer.from_host);
            for (request, answer) in requests.iter().zip(&answered) {
                assert!(alone(name, request).differs(answer) <= 1e-5, "{name}");
            }
        }
        assert!(saved > 0 && saved < preempted && from_host > 0, "{name}: {saved} of {preempted}");
        assert_eq!(scheduler.usage().preempted_bytes, 0);
        drop(scheduler);
        assert_eq!(engine.pages().free_blocks(), blocks);
    }
}
