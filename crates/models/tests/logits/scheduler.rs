//! Requests that arrive and leave at random: each gets the tokens that it gets alone, and no resource leaks.
//!
//! The tests run a few hundred arrivals. All 10,000 of each model take minutes:
//!
//! ```text
//! FIRSTLIGHT_ARRIVALS=10000 cargo test -p models --test logits scheduler::
//! ```

mod conversations;

use crate::eager::Eager;
use crate::subject::tokens;
use facts::BackendKind;
use models::{
    Capacity, Engine, FinishReason, GenerationControl, LogitsOf, Model, Request, RequestId,
    Sampling, Scheduler, SchedulerEvent, StepBudget, Storage, generate, open, shape,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

const SLOTS: usize = 5;
/// A block of 64 tokens for each: fewer than the sequences need.
const TOKENS: usize = 64;
const BUDGET: StepBudget = StepBudget {
    tokens: 150,
    max_mixed_tokens: 60,
    max_mixed_step: Duration::MAX,
    decode_steps_in_flight: 4,
};
/// Prompt lengths around block and chunk boundaries, from which a sequence outgrows its blocks while it decodes.
const LENGTHS: [usize; 12] = [1, 2, 17, 50, 60, 62, 63, 64, 65, 120, 127, 250];
const LIMIT: usize = 14;

fn engine(name: &str, capacity: Capacity) -> Box<dyn Engine> {
    Box::new(eager(name, capacity))
}

fn eager(name: &str, capacity: Capacity) -> Eager {
    // With an untied head the most likely token differs from the last one.
    let config = shape(name).unwrap().with("tie_word_embeddings", Value::Bool(false));
    let device = backends::open(BackendKind::Cpu).unwrap();
    let engine = open(Model::random(&config, 3).unwrap(), device, Storage::F32, capacity);
    Eager::new(engine.unwrap())
}

fn request(prompt: Vec<u32>, limit: usize) -> Request {
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

/// The prompts, and the tokens that each gets alone on an engine.
fn alone(name: &str) -> Vec<(Vec<u32>, Vec<u32>)> {
    let mut engine = engine(name, Capacity { sequences: 1, tokens: 300 });
    let budget =
        StepBudget { tokens: 1000, max_mixed_tokens: 1000, decode_steps_in_flight: 1, ..BUDGET };
    let mut answer = |(seed, length): (u32, &usize)| {
        // Some prompts share a prefix.
        let prompt =
            [&tokens(29, *length)[..length / 4 * 3], &tokens(seed, length - length / 4 * 3)]
                .concat();
        let requests = [request(prompt.clone(), LIMIT)];
        let generated =
            generate(&mut *engine, &requests, budget, |_| GenerationControl::More).unwrap();
        (prompt, generated[0].tokens.clone())
    };
    let prompts = LENGTHS.iter().chain(&LENGTHS).chain(&LENGTHS);
    (30..).zip(prompts).map(&mut answer).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % end as u64) as usize
    }
}

/// The expected answer of an active request, and the tokens so far.
struct ExpectedAnswer {
    want: Vec<u32>,
    ended: FinishReason,
    got: Vec<u32>,
}

fn ask(random: &mut Random, answers: &[(Vec<u32>, Vec<u32>)]) -> (Request, ExpectedAnswer) {
    let (prompt, answer) = &answers[random.below(answers.len())];
    let mut request = request(prompt.clone(), random.below(LIMIT + 1));
    // Some keep their slots, which others then take.
    request.keep = prompt.len() % 3 == 2;
    let (mut want, mut ended) = (answer[..request.limit].to_vec(), FinishReason::Limit);
    if random.below(4) == 0 {
        let stop = answer[random.below(LIMIT)];
        request.stop_ids.push(stop);
        if let Some(at) = want.iter().position(|token| *token == stop) {
            (want, ended) = (want[..at].to_vec(), FinishReason::StopId);
        }
    }
    (request, ExpectedAnswer { want, ended, got: Vec::new() })
}

#[derive(Debug, Default)]
struct Counts {
    finished: usize,
    cancelled: usize,
    preempted: usize,
    together: usize,
    reused: usize,
    /// Preempted requests saved to the host, and those restored, with snapshots.
    saved: usize,
    from_host: usize,
}

/// Maximum steps without a token for the oldest request: each step prefills at least this many of its tokens, except
/// the one in which it is swapped in.
const PATIENCE: usize = 300 / 55 + 2;

fn arrivals_of(name: &str, arrivals: usize, snapshots: usize, on_host: u64) -> Counts {
    let answers = alone(name);
    let varied = answers.iter().filter(|(_, answer)| answer.iter().any(|id| *id != answer[0]));
    assert!(varied.count() > answers.len() / 2, "answers of one token show nothing: {answers:?}");
    let mut engine = engine(name, Capacity { sequences: SLOTS + snapshots, tokens: TOKENS });
    let swap_space = on_host * engine.bytes_to_save(TOKENS);
    let mut scheduler = Scheduler::new(&mut *engine, BUDGET).with_prefix_cache(snapshots);
    scheduler.set_swap_space(swap_space).unwrap();
    let blocks = scheduler.usage().blocks;
    let (mut random, mut counts) = (Random(11), Counts::default());
    let mut open: BTreeMap<RequestId, ExpectedAnswer> = BTreeMap::new();
    let (mut left, mut oldest, mut patience) = (arrivals, None, 0);
    while left > 0 || !scheduler.is_idle() {
        for _ in 0..random.below(3).min(left) {
            if open.len() < 3 * SLOTS {
                let (request, asked) = ask(&mut random, &answers);
                open.insert(scheduler.submit(request).unwrap(), asked);
                left -= 1;
            }
        }
        if random.below(12) == 0 && !open.is_empty() {
            let id = *open.keys().nth(random.below(open.len())).unwrap();
            let asked = open.remove(&id).unwrap();
            assert!(scheduler.cancel(id) && !scheduler.cancel(id));
            assert_eq!(asked.got, asked.want[..asked.got.len()], "{name}, cancelled");
            counts.cancelled += 1;
        }
        let first = open.keys().next().copied();
        (oldest, patience) = if first == oldest { (first, patience + 1) } else { (first, 0) };
        for event in scheduler.step().unwrap() {
            let id = event.request();
            match event {
                SchedulerEvent::Token { token, .. } => {
                    open.get_mut(&id).unwrap().got.push(token);
                    patience = if Some(id) == oldest { 0 } else { patience };
                }
                SchedulerEvent::Finished { ended, .. } => {
                    let asked = open.remove(&id).unwrap();
                    assert_eq!((asked.got, ended), (asked.want, asked.ended), "{name}, {id:?}");
                    counts.finished += 1;
                }
                SchedulerEvent::Begun { reused, from_host, .. } => {
                    counts.reused += usize::from(reused > 0);
                    counts.from_host += usize::from(from_host);
                }
                SchedulerEvent::Scored { .. } => unreachable!("no prompt is scored"),
                SchedulerEvent::Preempted { saved, .. } => {
                    counts.saved += usize::from(saved);
                    assert_ne!(Some(id), oldest, "{name}: the oldest keeps what it has");
                    counts.preempted += 1;
                }
                SchedulerEvent::Embedded { .. } => {}
            }
        }
        assert!(patience <= PATIENCE, "{name}: {oldest:?} starves");
        let usage = scheduler.usage();
        let held = usage.running + usage.kept + usage.snapshots;
        assert_eq!(held + usage.free_slots, SLOTS + snapshots, "{name}");
        assert!(usage.running <= SLOTS && usage.snapshots <= snapshots, "{name}: {usage:?}");
        let on_host = usage.preempted_bytes + usage.saved_snapshot_bytes;
        assert!(on_host <= swap_space, "{name}: {usage:?}");
        counts.together = counts.together.max(usage.running);
    }
    let usage = scheduler.usage();
    assert!(open.is_empty());
    assert_eq!((usage.running, usage.preempted_bytes), (0, 0), "{name}: no request runs or waits");
    assert_eq!(
        usage.kept == 0,
        usage.free_blocks == blocks,
        "{name}: kept sequences alone have blocks"
    );
    drop(scheduler);
    assert_eq!(engine.pages().free_blocks(), blocks);
    counts
}

fn arrivals(name: &str, snapshots: usize, on_host: u64) {
    let arrivals = std::env::var("FIRSTLIGHT_ARRIVALS").map_or(150, |count| count.parse().unwrap());
    let counts = arrivals_of(name, arrivals, snapshots, on_host);
    assert_eq!(counts.finished + counts.cancelled, arrivals);
    assert!(counts.cancelled > arrivals / 20 && counts.preempted > arrivals / 30, "{counts:?}");
    assert_eq!(counts.together, SLOTS);
    assert!(snapshots == 0 || counts.reused > arrivals / 10, "{counts:?}");
    // Some are recomputed anyway: host memory has room for few.
    let some = arrivals / 50..counts.preempted;
    assert!(on_host == 0 || some.contains(&counts.saved), "{counts:?}");
    assert!(on_host == 0 || counts.from_host > arrivals / 50, "{counts:?}");
}

#[test]
fn kimi_requests_arriving_at_random_get_their_tokens() {
    arrivals("kimi-linear-mini", 0, 0);
}

#[test]
fn requests_with_shared_prefixes_get_their_tokens() {
    arrivals("granite-hybrid-mini", 3, 0);
}

#[test]
fn granite_requests_arriving_at_random_get_their_tokens() {
    arrivals("granite-hybrid-mini", 0, 0);
}

#[test]
fn kimi_swapped_requests_get_their_tokens() {
    arrivals("kimi-linear-mini", 3, 2);
}

#[test]
fn granite_swapped_requests_get_their_tokens() {
    arrivals("granite-hybrid-mini", 3, 1);
}

#[test]
fn request_beyond_the_capacity_is_refused() {
    let mut engine = engine("granite-hybrid-mini", Capacity { sequences: 2, tokens: 64 });
    let mut scheduler = Scheduler::new(&mut *engine, BUDGET);
    for (request, words) in [
        (request(Vec::new(), 4), "the prompt has no tokens"),
        (request(vec![1, 512], 4), "token 512 is beyond the model's vocabulary of 512"),
        (
            request(tokens(1, 120), 10),
            "prompt and continuation have 130 tokens, the cache holds 128",
        ),
        (
            request(tokens(1, 10), 5000),
            "prompt and continuation have 5010 tokens, the model's context is 4096",
        ),
    ] {
        assert_eq!(scheduler.submit(request).unwrap_err().to_string(), words);
    }
    assert!(scheduler.is_idle());
    // The last token is not fed to the engine.
    let id = scheduler.submit(request(tokens(1, 120), 9)).unwrap();
    let mut events = Vec::new();
    while !scheduler.is_idle() {
        events.extend(scheduler.step().unwrap());
    }
    assert_eq!(
        events.last(),
        Some(&SchedulerEvent::Finished { request: id, ended: FinishReason::Limit })
    );
    // One start, nine tokens and one end.
    assert_eq!((events.len(), scheduler.usage().free_blocks), (11, 2));
}

#[test]
fn joining_prompt_delays_others_by_one_chunk_per_step() {
    let mut engine = engine("granite-hybrid-mini", Capacity { sequences: 2, tokens: 300 });
    let mut scheduler = Scheduler::new(
        &mut *engine,
        StepBudget { tokens: 1000, max_mixed_tokens: 40, decode_steps_in_flight: 1, ..BUDGET },
    );
    let decoding = scheduler.submit(request(tokens(1, 4), 12)).unwrap();
    scheduler.step().unwrap();
    let joined = scheduler.submit(request(tokens(2, 200), 1)).unwrap();
    let mut steps = 0;
    loop {
        let events = scheduler.step().unwrap();
        let token = |event: &&SchedulerEvent| matches!(event, SchedulerEvent::Token { .. });
        let of = |id| events.iter().filter(token).filter(|event| event.request() == id).count();
        // One of the step's 40 tokens is decoded.
        steps += 1;
        assert_eq!(of(decoding), 1, "a token in every step");
        if of(joined) > 0 {
            break;
        }
    }
    assert_eq!(steps, 200usize.div_ceil(39));
}

/// One is ended by a stop token while the device continues, one is cancelled, one arrives, and two reach their limits.
#[test]
fn tokens_of_each_step_in_flight_are_delivered_when_it_ends() {
    let name = "kimi-linear-mini";
    let prompts = [31, 32, 33, 34].map(|seed| tokens(seed, 60));
    let mut fresh = engine(name, Capacity { sequences: 1, tokens: 400 });
    let budget =
        StepBudget { tokens: 400, max_mixed_tokens: 400, decode_steps_in_flight: 1, ..BUDGET };
    let want = prompts.clone().map(|prompt| {
        let requests = [request(prompt, 40)];
        generate(&mut *fresh, &requests, budget, |_| GenerationControl::More)
            .unwrap()
            .remove(0)
            .tokens
    });
    // Its first token that no other sequence ends with, within a range.
    let at = (8..40).find(|at| !want[0][..*at].contains(&want[0][*at])).unwrap();
    let mut engine = eager(name, Capacity { sequences: 3, tokens: 300 });
    let mut scheduler =
        Scheduler::new(&mut engine, StepBudget { decode_steps_in_flight: 8, ..budget });
    let stopped =
        Request { stop_ids: vec![want[0][at]], turn: true, ..request(prompts[0].clone(), 40) };
    let rest = prompts[1..3].iter().map(|prompt| request(prompt.clone(), 40));
    let ids = std::iter::once(stopped).chain(rest).map(|request| scheduler.submit(request));
    let mut ids = ids.collect::<Result<Vec<_>, _>>().unwrap();
    let mut got: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
    while !scheduler.is_idle() {
        let mut now = Vec::new();
        for event in scheduler.step().unwrap() {
            if let SchedulerEvent::Token { request, token, .. } = event {
                assert!(!now.contains(&request), "two tokens of one request in one delivery");
                now.push(request);
                got.entry(request).or_default().push(token);
            }
        }
        if ids.len() == 3 && got.get(&ids[2]).is_some_and(|got| got.len() >= 6) {
            assert!(scheduler.cancel(ids[2]));
            ids.push(scheduler.submit(request(prompts[3].clone(), 40)).unwrap());
        }
    }
    assert_eq!(scheduler.usage().free_slots, 3);
    drop(scheduler);
    assert_eq!(got[&ids[0]], want[0][..at]);
    assert_eq!(got[&ids[2]], want[2][..got[&ids[2]].len()]);
    assert_eq!([&got[&ids[1]], &got[&ids[3]]], [&want[1], &want[3]]);
    assert!(engine.went_on > 8, "{}", engine.went_on);
}
