//! Measures the time of swapping a sequence out to the host and in again and the delay of other sequences, and checks that the sequence
//! continues with the same tokens.
//!
//! `cargo build --release -p models --example time_swap`, then `target/release/examples/time_swap BACKEND SHAPE`, where BACKEND is
//! `cuda` or `cpu`, and SHAPE a model that `firstlight synth` knows.
#![allow(clippy::print_stdout, clippy::unwrap_used)] // It prints a table, and stops at the first error.

use facts::BackendKind;
use models::{
    Batch, Capacity, Choice, Engine, LogitsOf, LogitsSelection, Model, Request, Sampling,
    Scheduler, SchedulerEvent, StepBudget, Storage, open, shape,
};
use std::time::{Duration, Instant};

const LENGTHS: [usize; 4] = [64, 512, 4096, 32_768];
/// Swaps per length.
const ROUNDS: usize = 5;
/// Tokens to compare.
const COMPARED: usize = 64;

fn ids(seed: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 9) % 400 + seed).collect()
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// The next tokens of a sequence, and the time of the first step in ms.
fn greedy(engine: &mut dyn Engine, slot: usize, first: u32, count: usize) -> (Vec<u32>, f64) {
    let (sampling, began) = (Sampling::default(), Instant::now());
    let (mut all, mut took) = (vec![first], 0.0);
    while all.len() <= count {
        let batch = Batch::new().with(slot, &all[all.len() - 1..]);
        let drawn = engine.choose(&batch, &[Some(Choice::by(&sampling))], 1).unwrap();
        all.push(drawn[0].tokens[0].unwrap());
        took = if all.len() == 2 { millis(began) } else { took };
    }
    (all, took)
}

fn read(engine: &mut dyn Engine, slot: usize, prompt: &[u32]) {
    for chunk in prompt.chunks(engine.chunk()) {
        engine.step(&Batch::new().with(slot, chunk), LogitsSelection::Last).unwrap();
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// Swaps slot 0 out to the host and into slot 1, while slot 2 decodes.
fn moved(engine: &mut dyn Engine, length: usize) {
    read(engine, 0, &ids(0, length));
    read(engine, 2, &ids(5, 64));
    let [mut alone, mut saving, mut after_save, mut restoring, mut after_restore, mut landing] =
        [const { Vec::new() }; 6];
    let mut same = true;
    greedy(engine, 2, 7, 4);
    for _ in 0..ROUNDS {
        alone.push(greedy(engine, 2, 7, 1).1);
        let began = Instant::now();
        let saved = engine.save(0).unwrap();
        saving.push(millis(began));
        after_save.push(greedy(engine, 2, 7, 1).1);
        let began = Instant::now();
        engine.restore(&saved, 1).unwrap();
        restoring.push(millis(began));
        after_restore.push(greedy(engine, 2, 7, 1).1);
        let (back, took) = greedy(engine, 1, 9, COMPARED);
        landing.push(took);
        let (stayed, _) = greedy(engine, 0, 9, COMPARED);
        same &= back == stayed;
        engine.reset(1);
        engine.reset(0);
        engine.restore(&saved, 0).unwrap();
    }
    let bytes = engine.bytes_of(length) as f64 / 1e6;
    let [alone, saving, after_save, restoring, after_restore, landing] =
        [alone, saving, after_save, restoring, after_restore, landing].map(median);
    println!(
        "{length:>6} tokens, {bytes:>6.1} MB: save {saving:.2} ms, restore {restoring:.2} ms; another one's step {alone:.2} ms alone, \
         {after_save:.2} after the save, {after_restore:.2} after the restore; its own first step {landing:.2}; same ids: {same}"
    );
    (0..3).for_each(|slot| engine.reset(slot));
}

/// Runs requests with too few pages for all of them, with the given swap space in bytes.
fn preempted(engine: &mut dyn Engine, swap_space: u64) -> Vec<Vec<u32>> {
    let budget = StepBudget { max_mixed_step: Duration::MAX, ..engine.budget() };
    let mut scheduler = Scheduler::new(engine, budget);
    scheduler.set_swap_space(swap_space).unwrap();
    let request = |seed| Request {
        prompt: ids(seed, 1000 + 13 * seed as usize),
        limit: 400,
        sampling: Sampling::default(),
        stop_ids: Vec::new(),
        keep: false,
        shared: 0,
        turn: false,
        bypass_cache: true,
        logits: LogitsOf::None,
    };
    let submitted: Vec<_> = (1..9).map(|seed| scheduler.submit(request(seed)).unwrap()).collect();
    let mut answers = vec![Vec::new(); submitted.len()];
    let (mut preempted, mut saved, mut stepped, mut longest) = (0, 0, 0, 0f64);
    let began = Instant::now();
    while !scheduler.is_idle() {
        let step = Instant::now();
        let events = scheduler.step().unwrap();
        stepped += scheduler.stepped();
        longest = longest.max(millis(step));
        for event in events {
            match event {
                SchedulerEvent::Token { request, token, .. } => {
                    answers[submitted.binary_search(&request).unwrap()].push(token);
                }
                SchedulerEvent::Preempted { saved: on_host, .. } => {
                    preempted += 1;
                    saved += usize::from(on_host);
                }
                _ => {}
            }
        }
    }
    println!(
        "8 requests, {swap_space} bytes on the host: {preempted} preempted, {saved} saved, {stepped} tokens stepped, {:.0} ms, \
         longest step {longest:.1} ms",
        millis(began)
    );
    answers
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let (kind, storage) = match words[1].as_str() {
        "cuda" => (BackendKind::Cuda, Storage::Bf16),
        _ => (BackendKind::Cpu, Storage::F32),
    };
    let open_for = |sequences, tokens| {
        let model = Model::random(&shape(&words[2]).unwrap(), 3).unwrap();
        let device = backends::open(kind).unwrap();
        open(model, device, storage, Capacity { sequences, tokens }).unwrap()
    };
    let longest = words.get(3).map_or(usize::MAX, |most| most.parse().unwrap());
    let mut engine = open_for(3, 34_000.min(longest.saturating_add(1000)));
    engine.reserve(2 << 30).unwrap();
    while engine.reserve_more() {}
    for length in LENGTHS.into_iter().filter(|length| *length <= longest) {
        moved(&mut *engine, length);
    }
    drop(engine);
    let mut engine = open_for(8, 1100);
    let [with, without] = [4 << 30, 0].map(|bytes| preempted(&mut *engine, bytes));
    drop(engine);
    let mut engine = open_for(8, 2000);
    let never = preempted(&mut *engine, 0);
    let same = |one: &[Vec<u32>]| one.iter().zip(&never).filter(|(a, b)| a == b).count();
    println!(
        "answers equal to those without preemption: {} and {} of 8",
        same(&with),
        same(&without)
    );
}
