//! How long a prompt that joins delays the tokens of sequences that decode, by the scheduler, on the best device or the named one.
//!
//! ```text
//! cargo run --release -p models --example joined_prompt -- granite-4.0-h-micro 32 512 2048 cuda
//! ```
//!
//! creates the model with random weights, decodes 32 sequences after 512 tokens each, and then submits prompts of 2048 tokens, one after
//! the other. The first one is cold: its prefill steps are planned, and a decode step for one more sequence is captured as a CUDA graph
//! if it is longer than the steps captured while the engine was idle.
#![allow(clippy::print_stdout, clippy::unwrap_used)] // A program to be read by a developer.

use facts::BackendKind;
use models::{
    Capacity, LogitsOf, Model, Request, RequestId, Sampling, Scheduler, SchedulerEvent, Storage,
    open, shape,
};
use std::time::Instant;

/// Prompts that join.
const JOINS: usize = 5;
/// Longest prefill steps to print per prompt.
const LONGEST: usize = 6;
/// Steps before each prompt.
const ALONE: usize = 20;

fn request(seed: usize, tokens: usize, limit: usize, vocabulary: usize) -> Request {
    let token = |at: usize| ((at * 2_654_435_761 + seed * 97) >> 7) % vocabulary;
    let prompt = (1..=tokens).map(|at| token(at) as u32).collect();
    let (sampling, stop_ids, logits) = (Sampling::default(), Vec::new(), LogitsOf::None);
    Request {
        prompt,
        limit,
        sampling,
        stop_ids,
        keep: false,
        shared: 0,
        turn: false,
        bypass_cache: false,
        logits,
    }
}

/// A step: its time, the most tokens that any decoding sequence got, and whether the awaited request got one.
struct Step {
    millis: f64,
    tokens: usize,
    came: bool,
}

fn step(scheduler: &mut Scheduler<'_>, decoding: &[RequestId], waited: Option<RequestId>) -> Step {
    let start = Instant::now();
    let events = scheduler.step().unwrap();
    let millis = start.elapsed().as_secs_f64() * 1e3;
    let is_token = |event: &&SchedulerEvent| matches!(event, SchedulerEvent::Token { .. });
    let of = |id: RequestId| {
        events.iter().filter(is_token).filter(|event| event.request() == id).count()
    };
    let tokens = decoding.iter().map(|id| of(*id)).max().unwrap_or(0);
    Step { millis, tokens, came: waited.is_some_and(|id| of(id) > 0) }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let name = arguments.first().map_or("granite-hybrid-mini", String::as_str);
    let number =
        |at: usize, default| arguments.get(at).map_or(default, |text| text.parse().unwrap());
    let (sequences, depth, joining) = (number(1, 4), number(2, 64), number(3, 300));
    let backend = match arguments.get(4).map(String::as_str) {
        Some("cuda") => BackendKind::Cuda,
        _ => BackendKind::Cpu,
    };
    let limit = 8 * (ALONE + joining / 16) * (JOINS + 1);
    let model = Model::random(&shape(name).unwrap(), 1).unwrap();
    let capacity = Capacity { sequences: sequences + 1, tokens: depth.max(joining) + limit };
    let mut engine =
        open(model, backends::open(backend).unwrap(), Storage::Bf16, capacity).unwrap();
    let (vocabulary, budget) = (engine.architecture().vocabulary, engine.budget());
    println!("{name} on {backend}, {sequences} sequences after {depth} tokens, {budget:?}");

    let mut scheduler = Scheduler::new(&mut *engine, budget);
    let (mut made, mut slowest, start) = (0, 0.0f64, Instant::now());
    loop {
        let this = Instant::now();
        if !scheduler.prepare() {
            break;
        }
        (made, slowest) = (made + 1, slowest.max(this.elapsed().as_secs_f64() * 1e3));
    }
    let millis = start.elapsed().as_secs_f64() * 1e3;
    println!("{made} parts of steps prepared in {millis:.1} ms, the slowest in {slowest:.1} ms");
    let submit = |seed| request(seed, depth, limit, vocabulary);
    let decoding: Vec<RequestId> =
        (0..sequences).map(|seed| scheduler.submit(submit(seed)).unwrap()).collect();
    while step(&mut scheduler, &decoding, None).tokens == 0 {}
    for join in 0..=JOINS {
        let mut alone = Vec::new();
        for _ in 0..ALONE {
            let Step { millis, tokens, .. } = step(&mut scheduler, &decoding, None);
            alone.push(millis / tokens.max(1) as f64);
        }
        alone.sort_by(f64::total_cmp);
        let usual = alone[ALONE / 2];
        if join == JOINS {
            println!("{usual:.2} ms a token at last");
            break;
        }
        let joined = request(1000 + join, joining, 16, vocabulary);
        let joined = scheduler.submit(joined).unwrap();
        let (mut steps, mut first, mut delay, mut wait) = (0, 0.0, 0.0f64, 0.0f64);
        // Until the joined request ends, its decode steps together with the other sequences are counted too.
        let (mut came, mut running) = (false, true);
        let mut reading = Vec::new();
        while running {
            let this = step(&mut scheduler, &decoding, Some(joined));
            delay = delay.max(this.millis - this.tokens as f64 * usual);
            wait = wait.max(this.millis / this.tokens.max(1) as f64);
            if !came {
                (steps, first) = (steps + 1, first + this.millis);
                reading.push(this.millis);
            }
            came |= this.came;
            running = scheduler.usage().running > sequences || !came;
        }
        println!(
            "a prompt of {joining} joins: {usual:.2} ms a token before, {wait:.2} ms for the slowest one, \
             delayed by {delay:.2} ms at most; its own first token after {steps} steps and {first:.1} ms"
        );
        let mut longest: Vec<usize> = (0..reading.len()).collect();
        longest.sort_by(|a, b| reading[*b].total_cmp(&reading[*a]));
        let shown =
            longest.iter().take(LONGEST).map(|at| format!("{:.1} (step {at})", reading[*at]));
        println!("  longest steps in ms: {}", shown.collect::<Vec<_>>().join(", "));
    }
}
