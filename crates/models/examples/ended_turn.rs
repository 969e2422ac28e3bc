//! Checks that a turn ended by a stop token is cached at that token, on the CPU or with `cuda` on a GPU: with several decode steps in
//! flight, the GPU must stop the sequence without the host.
//!
//! ```text
//! cargo run --release -p models --example ended_turn -- granite-4.0-h-micro cuda
//! ```
//!
//! creates the model with random weights, ends turns by stop tokens while later steps are in flight, continues them immediately, and
//! sends the same prompts to an engine without a cache. It ends with `6 of 6 turns continued at their end, 6 answers equal an empty
//! engine's`.
#![allow(clippy::print_stdout, clippy::unwrap_used)] // A program to be read by a developer.

use facts::BackendKind;
use models::{
    Capacity, Engine, LogitsOf, Model, Request, Sampling, Scheduler, SchedulerEvent, Storage, open,
    shape,
};

/// Tokens of an answer: the first two come by steps, then as many as the device chooses at once.
const ANSWER: usize = 40;

fn request(prompt: &[u32], limit: usize) -> Request {
    Request {
        prompt: prompt.to_vec(),
        limit,
        sampling: Sampling { temperature: 1.0, seed: 5, ..Sampling::default() },
        stop_ids: Vec::new(),
        keep: false,
        shared: 0,
        turn: true,
        bypass_cache: false,
        logits: LogitsOf::None,
    }
}

/// Answers of requests submitted together, each with the number of prompt tokens taken from the cache.
fn answers(scheduler: &mut Scheduler<'_>, requests: Vec<Request>) -> Vec<(Vec<u32>, usize)> {
    let ids: Vec<_> =
        requests.into_iter().map(|request| scheduler.submit(request).unwrap()).collect();
    let mut answers = vec![(Vec::new(), 0); ids.len()];
    while !scheduler.is_idle() {
        for event in scheduler.step().unwrap() {
            let (tokens, reads) = &mut answers[ids.binary_search(&event.request()).unwrap()];
            match event {
                SchedulerEvent::Token { token, .. } => tokens.push(token),
                SchedulerEvent::Begun { reused, .. } => *reads = reused,
                _ => {}
            }
        }
    }
    answers
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "granite-hybrid-mini".to_owned());
    let backend = match arguments.next().as_deref() {
        Some("cuda") => BackendKind::Cuda,
        _ => BackendKind::Cpu,
    };
    let engine = || -> Box<dyn Engine> {
        let model = Model::random(&shape(&name).unwrap(), 1).unwrap();
        let capacity = Capacity { sequences: 24, tokens: 1024 };
        open(model, backends::open(backend).unwrap(), Storage::Bf16, capacity).unwrap()
    };
    let prompts: Vec<Vec<u32>> = [60, 63, 64, 65, 200, 500]
        .iter()
        .map(|length| (0..*length).map(|at| (at * 7 + length) % 509).collect())
        .collect();
    let mut first = engine();
    let budget = first.budget();
    let mut scheduler = Scheduler::new(&mut *first, budget).with_prefix_cache(12);
    let asked = prompts.iter().map(|prompt| request(prompt, ANSWER)).collect();
    let free = answers(&mut scheduler, asked);
    // Each turn ends at a different position among the steps in flight, at the first occurrence of a token.
    let ends: Vec<usize> = free
        .iter()
        .enumerate()
        .map(|(at, (free, _))| {
            (4 + at..ANSWER).find(|at| !free[..*at].contains(&free[*at])).unwrap()
        })
        .collect();
    let stopped = |at: usize| Request {
        stop_ids: vec![free[at].0[ends[at]]],
        ..request(&prompts[at], ANSWER)
    };
    let turns = answers(&mut scheduler, (0..prompts.len()).map(stopped).collect());
    let next: Vec<Request> = (0..prompts.len())
        .map(|at| request(&[&prompts[at], &turns[at].0[..], &[7, 11, 13]].concat(), 4))
        .collect();
    let cached = answers(&mut scheduler, next.clone());
    drop(scheduler);
    let mut other = engine();
    let mut scheduler = Scheduler::new(&mut *other, budget);
    let uncached = answers(&mut scheduler, next);
    let exact = (0..prompts.len()).filter(|at| cached[*at].1 == prompts[*at].len() + ends[*at]);
    let (exact, of) = (exact.count(), prompts.len());
    let equal = cached.iter().zip(&uncached).filter(|(one, other)| one.0 == other.0).count();
    for (at, (_, reused)) in cached.iter().enumerate() {
        println!("turn of {} and {} tokens: {reused} reused", prompts[at].len(), ends[at]);
    }
    println!(
        "{exact} of {of} turns continued at their end, {equal} answers equal an empty engine's"
    );
}
