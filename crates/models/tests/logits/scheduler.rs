//! Requests that come and go at random: each gets the tokens that it gets alone, and nothing of the engine is lost.
//!
//! The tests draw a few hundred arrivals. All 10,000 of each model take minutes:
//!
//! ```text
//! FIRSTLIGHT_ARRIVALS=10000 cargo test -p models --test logits scheduler::
//! ```

use crate::eager::Eager;
use crate::subject::tokens;
use facts::BackendKind;
use models::{
    Capacity, Ended, Engine, Event, LogitsOf, Model, Next, Request, RequestId, Sampling, Scheduler,
    StepBudget, Storage, generate, open, shape,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

const SLOTS: usize = 5;
/// A block of 64 tokens for each: fewer than the sequences take.
const TOKENS: usize = 64;
const BUDGET: StepBudget =
    StepBudget { tokens: 150, beside: 60, patience: Duration::MAX, ahead: 4 };
/// Lengths of prompts around the ends of blocks and chunks, of which a sequence outgrows its blocks while it decodes.
const LENGTHS: [usize; 12] = [1, 2, 17, 50, 60, 62, 63, 64, 65, 120, 127, 250];
const LIMIT: usize = 14;

fn engine(name: &str, capacity: Capacity) -> Box<dyn Engine> {
    Box::new(eager(name, capacity))
}

fn eager(name: &str, capacity: Capacity) -> Eager {
    // A head of its own: the likeliest token is not the last one again.
    let config = shape(name).unwrap().with("tie_word_embeddings", Value::Bool(false));
    let device = device::open(BackendKind::Cpu).unwrap();
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
        anew: false,
        logits,
    }
}

/// What each of the prompts is continued with, alone on an engine.
fn alone(name: &str) -> Vec<(Vec<u32>, Vec<u32>)> {
    let mut engine = engine(name, Capacity { sequences: 1, tokens: 300 });
    let budget = StepBudget { tokens: 1000, beside: 1000, patience: Duration::MAX, ahead: 1 };
    let mut answer = |(seed, length): (u32, &usize)| {
        // Some begin like others.
        let prompt =
            [&tokens(29, *length)[..length / 4 * 3], &tokens(seed, length - length / 4 * 3)]
                .concat();
        let requests = [request(prompt.clone(), LIMIT)];
        let generated = generate(&mut *engine, &requests, budget, |_| Next::More).unwrap();
        (prompt, generated[0].tokens.clone())
    };
    let prompts = LENGTHS.iter().chain(&LENGTHS).chain(&LENGTHS);
    (30..).zip(prompts).map(&mut answer).collect()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % end as u64) as usize
    }
}

/// A request that has not ended.
struct Asked {
    want: Vec<u32>,
    ended: Ended,
    got: Vec<u32>,
}

fn ask(random: &mut Random, answers: &[(Vec<u32>, Vec<u32>)]) -> (Request, Asked) {
    let (prompt, answer) = &answers[random.below(answers.len())];
    let mut request = request(prompt.clone(), random.below(LIMIT + 1));
    // Some stay in their slots, which others then take.
    request.keep = prompt.len() % 3 == 2;
    let (mut want, mut ended) = (answer[..request.limit].to_vec(), Ended::Limit);
    if random.below(4) == 0 {
        let stop = answer[random.below(LIMIT)];
        request.stop_ids.push(stop);
        if let Some(at) = want.iter().position(|token| *token == stop) {
            (want, ended) = (want[..at].to_vec(), Ended::StopId);
        }
    }
    (request, Asked { want, ended, got: Vec::new() })
}

#[derive(Debug, Default)]
struct Counts {
    finished: usize,
    cancelled: usize,
    preempted: usize,
    together: usize,
    reused: usize,
    /// Preempted requests that the host has, and those that came back from there, with snapshots.
    saved: usize,
    from_host: usize,
}

/// Steps in which the oldest request may go without a token: it reads at least as many tokens of its prompt in each, but for the one in
/// which it comes from the host.
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
    let mut open: BTreeMap<RequestId, Asked> = BTreeMap::new();
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
                Event::Token { token, .. } => {
                    open.get_mut(&id).unwrap().got.push(token);
                    patience = if Some(id) == oldest { 0 } else { patience };
                }
                Event::Finished { ended, .. } => {
                    let asked = open.remove(&id).unwrap();
                    assert_eq!((asked.got, ended), (asked.want, asked.ended), "{name}, {id:?}");
                    counts.finished += 1;
                }
                Event::Begun { reused, from_host, .. } => {
                    counts.reused += usize::from(reused > 0);
                    counts.from_host += usize::from(from_host);
                }
                Event::Scored { .. } => unreachable!("no prompt is scored"),
                Event::Preempted { saved, .. } => {
                    counts.saved += usize::from(saved);
                    assert_ne!(Some(id), oldest, "{name}: the oldest keeps what it has");
                    counts.preempted += 1;
                }
                Event::Embedded { .. } => {}
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
    assert_eq!((usage.running, usage.preempted_bytes), (0, 0), "{name}: nobody runs or waits");
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
    // Some are read again all the same: the host has room for few.
    let some = arrivals / 50..counts.preempted;
    assert!(on_host == 0 || some.contains(&counts.saved), "{counts:?}");
    assert!(on_host == 0 || counts.from_host > arrivals / 50, "{counts:?}");
}

#[test]
fn kimi_requests_that_come_and_go_are_each_as_if_alone() {
    arrivals("kimi-linear-mini", 0, 0);
}

#[test]
fn requests_that_begin_with_what_others_left_are_each_as_if_alone() {
    arrivals("granite-hybrid-mini", 3, 0);
}

#[test]
fn granite_requests_that_come_and_go_are_each_as_if_alone() {
    arrivals("granite-hybrid-mini", 0, 0);
}

#[test]
fn kimi_requests_that_go_to_the_host_and_come_back_are_each_as_if_alone() {
    arrivals("kimi-linear-mini", 3, 2);
}

#[test]
fn granite_requests_that_go_to_the_host_and_come_back_are_each_as_if_alone() {
    arrivals("granite-hybrid-mini", 3, 1);
}

#[test]
fn a_request_that_can_never_run_is_refused_and_one_that_just_fits_runs() {
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
    // The last token is read by nobody.
    let id = scheduler.submit(request(tokens(1, 120), 9)).unwrap();
    let mut events = Vec::new();
    while !scheduler.is_idle() {
        events.extend(scheduler.step().unwrap());
    }
    assert_eq!(events.last(), Some(&Event::Finished { request: id, ended: Ended::Limit }));
    // It begins, has nine tokens and ends.
    assert_eq!((events.len(), scheduler.usage().free_blocks), (11, 2));
}

#[test]
fn a_prompt_that_joins_delays_others_by_a_chunk_at_a_time() {
    let mut engine = engine("granite-hybrid-mini", Capacity { sequences: 2, tokens: 300 });
    let mut scheduler = Scheduler::new(
        &mut *engine,
        StepBudget { tokens: 1000, beside: 40, patience: Duration::MAX, ahead: 1 },
    );
    let decoding = scheduler.submit(request(tokens(1, 4), 12)).unwrap();
    scheduler.step().unwrap();
    let joined = scheduler.submit(request(tokens(2, 200), 1)).unwrap();
    let mut steps = 0;
    loop {
        let events = scheduler.step().unwrap();
        let token = |event: &&Event| matches!(event, Event::Token { .. });
        let of = |id| events.iter().filter(token).filter(|event| event.request() == id).count();
        // Of the step's 40 tokens one is decoded.
        steps += 1;
        assert_eq!(of(decoding), 1, "a token in every step");
        if of(joined) > 0 {
            break;
        }
    }
    assert_eq!(steps, 200usize.div_ceil(39));
}

/// The tokens of a request, how many of its prompt were not read again, and how it ended.
struct Answered {
    tokens: Vec<u32>,
    reused: usize,
    ended: Option<Ended>,
}

/// Runs a request to its end, or for so many tokens.
fn answered(scheduler: &mut Scheduler<'_>, request: Request, most: usize) -> Answered {
    let id = scheduler.submit(request).unwrap();
    let mut answered = Answered { tokens: Vec::new(), reused: 0, ended: None };
    while answered.ended.is_none() && answered.tokens.len() < most {
        let events = scheduler.step().unwrap();
        answered.reused = scheduler.reused(id).unwrap_or(answered.reused);
        for event in events {
            match event {
                Event::Token { token, .. } => answered.tokens.push(token),
                Event::Finished { ended, .. } => answered.ended = Some(ended),
                Event::Begun { .. }
                | Event::Scored { .. }
                | Event::Embedded { .. }
                | Event::Preempted { .. } => {}
            }
        }
    }
    scheduler.cancel(id);
    answered
}

fn conversation(name: &str) {
    let mut fresh = engine(name, Capacity { sequences: 1, tokens: 400 });
    let mut fresh = |prompt: &[u32], limit: usize| {
        let requests = [request(prompt.to_vec(), limit)];
        let budget = StepBudget { tokens: 1000, beside: 1000, patience: Duration::MAX, ahead: 1 };
        generate(&mut *fresh, &requests, budget, |_| Next::More).unwrap().remove(0).tokens
    };
    let mut engine = engine(name, Capacity { sequences: 1, tokens: 400 });
    // Eight at once where nothing is kept: a kept sequence must not have read behind its end.
    let budget = StepBudget { tokens: 50, beside: 50, patience: Duration::MAX, ahead: 8 };
    let mut scheduler = Scheduler::new(&mut *engine, budget);
    let keep =
        |prompt: &[u32], limit: usize| Request { keep: true, ..request(prompt.to_vec(), limit) };
    let first = tokens(7, 70);
    let answer = answered(&mut scheduler, keep(&first, 12), 99);
    assert_eq!((&answer.tokens, answer.reused), (&fresh(&first, 12), 0), "{name}");
    // The last token of an answer at its limit was read by nobody.
    let mut said = [&first[..], &answer.tokens, &tokens(8, 20)].concat();
    let second = answered(&mut scheduler, keep(&said, 9), 99);
    assert_eq!((&second.tokens, second.reused), (&fresh(&said, 9), 70 + 11), "{name}");
    // One that is ended by a token has read all before that.
    said.extend(&second.tokens);
    said.extend(tokens(9, 3));
    let all = fresh(&said, 10);
    let at = (1..10).find(|at| !all[..*at].contains(&all[*at])).unwrap();
    let third =
        answered(&mut scheduler, Request { stop_ids: vec![all[at]], ..keep(&said, 10) }, 99);
    assert_eq!((&third.tokens[..], third.ended), (&all[..at], Some(Ended::StopId)), "{name}");
    let kept = said.len() + at;
    said.extend(&all[..=at]);
    // One that is cancelled stays too.
    let fourth = answered(&mut scheduler, keep(&said, 10), 4);
    assert_eq!((&fourth.tokens, fourth.reused), (&fresh(&said, 4), kept), "{name}");
    // What does not begin alike is read whole, and so is the same again: a state cannot go back.
    for prompt in [&said[..], &said[1..], &tokens(3, 90)] {
        let other = answered(&mut scheduler, keep(prompt, 3), 99);
        assert_eq!((&other.tokens, other.reused), (&fresh(prompt, 3), 0), "{name}");
    }
    assert_eq!((scheduler.usage().kept, scheduler.usage().free_slots), (1, 0));
    // A request that wants all pages gets them.
    let long = tokens(5, 380);
    let whole = answered(&mut scheduler, request(long.clone(), 5), 99);
    assert_eq!(whole.tokens, fresh(&long, 5), "{name}");
    let usage = scheduler.usage();
    assert_eq!((usage.kept, usage.free_blocks), (0, usage.blocks));
}

#[test]
fn a_conversation_is_read_once_and_answered_as_if_read_anew() {
    conversation("kimi-linear-mini");
    conversation("granite-hybrid-mini");
}

/// One who talks to a model.
struct Talker {
    said: Vec<u32>,
    turns: usize,
    /// The request that is answered, what it should be answered with, and what it was so far.
    open: Option<(RequestId, Vec<u32>)>,
    got: Vec<u32>,
}

/// More talkers than slots: who finds the sequence still there goes on with it, the others begin anew, and nobody can tell.
#[test]
fn conversations_on_few_slots_are_answered_as_if_read_anew() {
    let name = "granite-hybrid-mini";
    let mut fresh = engine(name, Capacity { sequences: 1, tokens: 400 });
    let mut engine = engine(name, Capacity { sequences: 3, tokens: 130 });
    let mut scheduler = Scheduler::new(&mut *engine, StepBudget { ahead: 1, ..BUDGET });
    let mut random = Random(5);
    let talker = |_| Talker { said: Vec::new(), turns: 6, open: None, got: Vec::new() };
    let mut talkers: Vec<Talker> = (0..4).map(talker).collect();
    let (mut reused, mut anew, mut seed) = (0, 0, 100);
    while !scheduler.is_idle() || talkers.iter().any(|talker| talker.turns > 0) {
        for talker in &mut talkers {
            if talker.open.is_some() || talker.turns == 0 || random.below(3) > 0 {
                continue;
            }
            (talker.turns, seed) = (talker.turns - 1, seed + 1);
            talker.said.extend(tokens(seed, 1 + random.below(25)));
            let asked = request(talker.said.clone(), 1 + random.below(9));
            let budget =
                StepBudget { tokens: 1000, beside: 1000, patience: Duration::MAX, ahead: 1 };
            let requests = std::slice::from_ref(&asked);
            let want = generate(&mut *fresh, requests, budget, |_| Next::More).unwrap().remove(0);
            let id = scheduler.submit(Request { keep: true, ..asked }).unwrap();
            (talker.open, talker.got) = (Some((id, want.tokens)), Vec::new());
        }
        for event in scheduler.step().unwrap() {
            let id = event.request();
            let mine = |talker: &&mut Talker| talker.open.as_ref().is_some_and(|open| open.0 == id);
            let talker = talkers.iter_mut().find(mine).unwrap();
            match event {
                Event::Token { token, .. } => {
                    if talker.got.is_empty() && talker.turns < 5 {
                        // It may have ended in this step, and is then not known any more.
                        match scheduler.reused(id) {
                            Some(0) => anew += 1,
                            Some(_) => reused += 1,
                            None => {}
                        }
                    }
                    talker.got.push(token);
                }
                Event::Finished { .. } => {
                    let want = talker.open.take().map(|(_, want)| want);
                    assert_eq!(Some(&talker.got), want.as_ref());
                    talker.said.extend(&talker.got);
                }
                Event::Begun { .. }
                | Event::Scored { .. }
                | Event::Embedded { .. }
                | Event::Preempted { .. } => {}
            }
        }
    }
    assert!(reused > 4 && anew > 2, "{reused} went on, {anew} began anew");
}

/// One ends by a token while the device goes on, one is cancelled, one comes, and two end by their length.
#[test]
fn tokens_of_each_step_in_flight_are_delivered_when_it_ends() {
    let name = "kimi-linear-mini";
    let prompts = [31, 32, 33, 34].map(|seed| tokens(seed, 60));
    let mut fresh = engine(name, Capacity { sequences: 1, tokens: 400 });
    let budget = StepBudget { tokens: 400, beside: 400, patience: Duration::MAX, ahead: 1 };
    let want = prompts.clone().map(|prompt| {
        let requests = [request(prompt, 40)];
        generate(&mut *fresh, &requests, budget, |_| Next::More).unwrap().remove(0).tokens
    });
    // Its first token that no other ends with, within a part.
    let at = (8..40).find(|at| !want[0][..*at].contains(&want[0][*at])).unwrap();
    let mut engine = eager(name, Capacity { sequences: 3, tokens: 300 });
    let mut scheduler = Scheduler::new(&mut engine, StepBudget { ahead: 8, ..budget });
    let stopped =
        Request { stop_ids: vec![want[0][at]], turn: true, ..request(prompts[0].clone(), 40) };
    let rest = prompts[1..3].iter().map(|prompt| request(prompt.clone(), 40));
    let ids = std::iter::once(stopped).chain(rest).map(|request| scheduler.submit(request));
    let mut ids = ids.collect::<Result<Vec<_>, _>>().unwrap();
    let mut got: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
    while !scheduler.is_idle() {
        let mut now = Vec::new();
        for event in scheduler.step().unwrap() {
            if let Event::Token { request, token, .. } = event {
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
