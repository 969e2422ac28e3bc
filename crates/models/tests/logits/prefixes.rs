//! The prefix cache: requests that start from a cached state get the same answers as without the cache.

use crate::eager::Eager;
use crate::subject::tokens;
use architectures::Architecture;
use device::Device;
use facts::BackendKind;
use models::{
    Batch, Capacity, Choice, Engine, LogitsOf, LogitsSelection, Model, ModelError, Pages, Request,
    SampledTokens, Sampling, SavedSequence, Scheduler, SchedulerEvent, StepBudget, Storage,
    choose_by_steps, open, shape,
};
use serde_json::Value;
use std::time::Duration;

pub(crate) const BUDGET: StepBudget = StepBudget {
    tokens: 100,
    max_mixed_tokens: 60,
    max_mixed_step: Duration::MAX,
    decode_steps_in_flight: 1,
};
pub(crate) const MAX_DIFFERENCE: f32 = 1e-5;

pub(crate) fn engine(name: &str, sequences: usize) -> Box<dyn Engine> {
    let config = shape(name).unwrap().with("tie_word_embeddings", Value::Bool(false));
    let device = backends::open(BackendKind::Cpu).unwrap();
    let capacity = Capacity { sequences, tokens: 320 };
    let engine = open(Model::random(&config, 3).unwrap(), device, Storage::F32, capacity);
    Box::new(Eager::new(engine.unwrap()))
}

pub(crate) fn request(prompt: &[u32], shared: usize) -> Request {
    Request {
        prompt: prompt.to_vec(),
        limit: 2,
        sampling: Sampling::default(),
        stop_ids: Vec::new(),
        keep: false,
        shared,
        turn: false,
        bypass_cache: false,
        logits: LogitsOf::All,
    }
}

/// The answer to a request: its tokens, their logits if requested, and the number of cached prompt tokens.
#[derive(Debug, Default, Clone)]
pub(crate) struct Answer {
    pub(crate) tokens: Vec<u32>,
    logits: Vec<f32>,
    pub(crate) reused: usize,
    lost: usize,
    pub(crate) from_host: bool,
}

/// Submits requests together and runs them to completion.
pub(crate) fn answers(scheduler: &mut Scheduler<'_>, requests: Vec<Request>) -> Vec<Answer> {
    let ids = requests.into_iter().map(|request| scheduler.submit(request).unwrap());
    let ids: Vec<_> = ids.collect();
    let mut answers = vec![Answer::default(); ids.len()];
    while !scheduler.is_idle() {
        for event in scheduler.step().unwrap() {
            let answer = &mut answers[ids.binary_search(&event.request()).unwrap()];
            match event {
                SchedulerEvent::Begun { reused, lost, from_host, .. } => {
                    (answer.reused, answer.lost, answer.from_host) = (reused, lost, from_host);
                }
                SchedulerEvent::Token { token, logits, .. } => {
                    answer.tokens.push(token);
                    let logits = logits.and_then(|of| scheduler.logits(of));
                    answer.logits.extend(logits.unwrap_or_default());
                }
                _ => {}
            }
        }
    }
    answers
}

/// Answers of an engine without a prefix cache.
pub(crate) struct Fresh(pub(crate) Box<dyn Engine>);

impl Fresh {
    pub(crate) fn differs(&mut self, prompt: &[u32], from: &Answer) -> f32 {
        let mut scheduler = Scheduler::new(&mut *self.0, BUDGET);
        let anew = answers(&mut scheduler, vec![request(prompt, 0)]).remove(0);
        assert!(!anew.logits.is_empty() && anew.logits.len() == from.logits.len());
        let pairs = anew.logits.iter().zip(&from.logits);
        pairs.map(|(anew, from)| (anew - from).abs()).fold(0.0, f32::max)
    }
}

/// A prompt whose first tokens are shared with others.
fn parting(at: usize, length: usize, seed: u32) -> Vec<u32> {
    [&tokens(1, 320)[..at], &tokens(seed, length - at)].concat()
}

fn everywhere(name: &str) {
    let mut fresh = Fresh(engine(name, 1));
    let mut engine = engine(name, 4);
    let mut scheduler = Scheduler::new(&mut *engine, BUDGET).with_prefix_cache(2);
    let (mut hits, mut seed) = (0, 50);
    // Around block boundaries, both where prompts diverge and where they end.
    for at in [0, 1, 63, 64, 65, 127, 128, 129, 192, 255] {
        for beyond in [1, 63, 64, 65, 130] {
            let length = (at + beyond).min(300);
            seed += 1;
            let prompt = parting(at, length, seed);
            // An unrelated prompt, then the same one again: both need slots.
            for prompt in [&prompt, &tokens(seed + 500, 70), &prompt] {
                let answer = answers(&mut scheduler, vec![request(prompt, 0)]).remove(0);
                assert!(answer.reused < prompt.len() && answer.reused.is_multiple_of(64));
                hits += usize::from(answer.reused > 0);
                let differs = fresh.differs(prompt, &answer);
                assert!(
                    differs <= MAX_DIFFERENCE,
                    "{name}: {at} of {length}, {answer:?}: {differs}"
                );
            }
            assert!(scheduler.usage().snapshots <= 2);
        }
    }
    assert!(hits > 60, "{name}: {hits}");
    drop(scheduler);
    assert_eq!(engine.pages().free_blocks(), engine.pages().blocks());
}

#[test]
fn granite_continues_from_cached_prefixes() {
    everywhere("granite-hybrid-mini");
}

#[test]
fn kimi_continues_from_cached_prefixes() {
    everywhere("kimi-linear-mini");
}

#[test]
fn jamba_continues_from_cached_prefixes() {
    everywhere("jamba-mini");
}

#[test]
fn only_uncached_tokens_are_prefilled() {
    let mut engine = engine("granite-hybrid-mini", 13);
    let mut scheduler = Scheduler::new(&mut *engine, BUDGET).with_prefix_cache(12);
    let mut of = |prompt: &[u32], shared: usize| {
        let answer = answers(&mut scheduler, vec![request(prompt, shared)]).remove(0);
        (answer.reused, answer.lost)
    };
    // The same prompt again, also one that ends at a block boundary: at least one token must be prefilled.
    let whole = tokens(9, 128);
    assert_eq!((of(&whole, 0), of(&whole, 0)), ((0, 0), (64, 0)));
    // A declared shared prefix is cached for the second request, up to the last whole block.
    let [first, second] = [60, 61].map(|seed| parting(200, 260, seed));
    assert_eq!((of(&first, 200), of(&second, 200)), ((0, 0), (192, 0)));
    // An undeclared one is detected where two prompts diverge, and cached for the third.
    let shared = tokens(70, 220);
    let [first, second, third] = [71, 72, 73].map(|seed| [&shared[..], &tokens(seed, 40)].concat());
    assert_eq!((of(&first, 0), of(&second, 0), of(&third, 0)), ((0, 0), (128, 64), (192, 0)));
    // Prompts shorter than a block are not cached.
    assert_eq!((of(&shared[..40], 40), of(&shared[..40], 40)), ((0, 0), (0, 0)));
}

#[test]
fn concurrent_equal_prompts_are_prefilled_once() {
    let name = "granite-hybrid-mini";
    let mut fresh = Fresh(engine(name, 1));
    let mut engine = engine(name, 8);
    let mut scheduler = Scheduler::new(&mut *engine, BUDGET).with_prefix_cache(2);
    let prompts: Vec<Vec<u32>> = (90..95).map(|seed| parting(250, 270, seed)).collect();
    let requests = prompts.iter().map(|prompt| request(prompt, 0)).collect();
    let answers = answers(&mut scheduler, requests);
    let reused: Vec<usize> = answers.iter().map(|answer| answer.reused).collect();
    assert_eq!(reused, [0, 192, 192, 192, 192]);
    for (prompt, answer) in prompts.iter().zip(&answers) {
        assert!(fresh.differs(prompt, answer) <= MAX_DIFFERENCE);
    }
}

#[test]
fn full_prefix_cache_evicts() {
    let name = "granite-hybrid-mini";
    let mut fresh = Fresh(engine(name, 2));
    // Ten blocks: a cached prompt and the next one need more.
    let mut engine = engine(name, 2);
    let mut scheduler = Scheduler::new(&mut *engine, BUDGET).with_prefix_cache(1);
    for seed in 20..24 {
        let prompt = tokens(seed, 408);
        let answer = answers(&mut scheduler, vec![request(&prompt, 0)]).remove(0);
        assert_eq!((answer.reused, scheduler.usage().snapshots), (0, 1));
        assert!(fresh.differs(&prompt, &answer) <= MAX_DIFFERENCE);
    }
}

/// An engine with a planted fault in its copies of states.
pub(crate) struct Planted {
    pub(crate) inner: Box<dyn Engine>,
    pub(crate) fault: Fault,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    /// A slot starts with the state of other tokens.
    OtherState,
    /// A slot starts with the state of padding.
    Padding,
    /// Stop tokens are read, and tokens after them are chosen.
    ReadsOn,
}

impl Engine for Planted {
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
    fn bytes_of(&self, tokens: usize) -> u64 {
        self.inner.bytes_of(tokens)
    }
    fn save(&mut self, sequence: usize) -> Result<SavedSequence, ModelError> {
        self.inner.save(sequence)
    }
    fn restore(&mut self, saved: &SavedSequence, to: usize) -> Result<(), ModelError> {
        self.inner.restore(saved, to)
    }
    fn reset(&mut self, sequence: usize) {
        self.inner.reset(sequence);
    }
    fn keep(&mut self, sequence: usize) -> bool {
        self.inner.keep(sequence)
    }
    fn choose(
        &mut self,
        batch: &Batch,
        how: &[Option<Choice<'_>>],
        count: usize,
    ) -> Result<Vec<SampledTokens>, ModelError> {
        let mut how = how.to_vec();
        if self.fault == Fault::ReadsOn {
            how.iter_mut().flatten().for_each(|how| how.stop_ids = &[]);
        }
        choose_by_steps(self, batch, &how, count)
    }
    fn fork(&mut self, from: usize, to: usize, keep: bool) -> Result<(), ModelError> {
        let length = self.inner.pages().len(from);
        let tokens = match self.fault {
            Fault::OtherState => tokens(999, length),
            Fault::Padding => vec![0; length],
            Fault::ReadsOn => return self.inner.fork(from, to, keep),
        };
        self.inner.step(&Batch::new().with(to, &tokens), LogitsSelection::Last).map(|_| ())
    }
}

#[test]
fn wrong_cached_state_changes_the_answer() {
    let name = "granite-hybrid-mini";
    for fault in [Fault::OtherState, Fault::Padding] {
        let mut fresh = Fresh(engine(name, 1));
        let mut engine = Planted { inner: engine(name, 4), fault };
        let mut scheduler = Scheduler::new(&mut engine, BUDGET).with_prefix_cache(2);
        let prompt = tokens(1, 150);
        let mut differs = || {
            let answer = answers(&mut scheduler, vec![request(&prompt, 0)]).remove(0);
            fresh.differs(&prompt, &answer)
        };
        assert!(differs() <= MAX_DIFFERENCE, "{fault:?}: nothing was kept before");
        assert!(differs() > 100.0 * MAX_DIFFERENCE, "{fault:?}");
    }
}
