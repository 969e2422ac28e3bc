//! A service over an engine that can be held back, and fails where it is told to.

#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap as tests do.

mod guarded;

use guarded::{BAD, Fails, Guarded, engine};
use models::{Ended, Engine, LogitsOf, Request, Sampling, generate};
use serving::{
    BuildError, Limits, Named, Phase, Refusal, Sequence, Service, Settings, Ticket, TokenRules,
    Update, Why,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const SLOTS: usize = 3;
const QUEUED: usize = 2;
const TOKENS: usize = 256;

struct Server {
    service: Service,
    thread: JoinHandle<Result<(), BuildError>>,
    steps: Arc<AtomicUsize>,
    gate: Option<Sender<()>>,
}

fn settings() -> Settings {
    let limits =
        Limits { sequences: SLOTS, queued: QUEUED, tokens: TOKENS, vocabulary: 512, logprobs: 20 };
    let named = Named { model: "mini".to_owned(), engine: "0".to_owned() };
    // Few, so that prompts take several steps.
    Settings {
        limits,
        step_tokens: Some(4),
        snapshots: 0,
        swap_space: 0,
        verify_cache: 0.0,
        named,
        process_start: Instant::now(),
    }
}

fn start(fails: Fails, gated: bool) -> Server {
    start_with(settings(), fails, gated)
}

fn start_with(settings: Settings, fails: Fails, gated: bool) -> Server {
    start_readying(settings, fails, gated, None)
}

/// The same of an engine that makes a step ready for each word that comes.
fn start_readying(
    settings: Settings,
    fails: Fails,
    gated: bool,
    ready: Option<Mutex<Receiver<()>>>,
) -> Server {
    let steps = Arc::new(AtomicUsize::new(0));
    let (gate, waiting) = channel();
    let (gate, waiting) =
        if gated { (Some(gate), Some(Mutex::new(waiting))) } else { (None, None) };
    let own = Arc::clone(&steps);
    let build = Box::new(move || {
        let guarded = Guarded { inner: engine(), gate: waiting, fails, steps: own, ready };
        Ok(Box::new(guarded) as Box<dyn Engine>)
    });
    let (service, thread) = Service::start(settings, build).unwrap();
    wait(|| service.phase() != Phase::Loading);
    Server { service, thread, steps, gate }
}

fn wait(until: impl Fn() -> bool) {
    let start = Instant::now();
    while !until() {
        assert!(start.elapsed() < Duration::from_secs(30), "it took too long");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn sequence(prompt: &[u32], limit: usize) -> Sequence {
    let request = Request {
        prompt: prompt.to_vec(),
        limit,
        sampling: Sampling::default(),
        stop_ids: Vec::new(),
        keep: false,
        shared: 0,
        turn: false,
        anew: false,
        logits: LogitsOf::None,
    };
    Sequence {
        request,
        logprobs: None,
        score_prompt: false,
        guide: None,
        rules: TokenRules::default(),
    }
}

/// What became of each sequence of a ticket.
fn ends(mut ticket: Ticket, count: usize) -> Vec<(Vec<u32>, Result<Ended, Why>)> {
    let mut all = vec![(Vec::new(), None); count];
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    while let Some(update) = runtime.block_on(ticket.next()) {
        match update {
            Update::Begun { .. } | Update::Prompt { .. } | Update::Embedded { .. } => {}
            Update::Token { index, token, .. } => all[index].0.push(token),
            Update::Finished { index, ended } => all[index].1 = Some(Ok(ended)),
            Update::Failed { index, why } => all[index].1 = Some(Err(why)),
        }
    }
    all.into_iter().map(|(tokens, end)| (tokens, end.expect("it was told how it ended"))).collect()
}

fn nothing_is_held(service: &Service) {
    // A place is free a moment before the rest is told.
    wait(|| service.open() + service.health().running + service.health().waiting == 0);
    let health = service.health();
    assert_eq!((health.running, health.waiting), (0, 0), "{health:?}");
    if !health.phase.is_over() {
        assert_eq!((health.free_slots, health.free_blocks), (SLOTS, health.blocks), "{health:?}");
    }
}

fn alone(prompt: &[u32], limit: usize) -> Vec<u32> {
    let mut engine = engine();
    let (request, budget) = (sequence(prompt, limit).request, engine.budget());
    generate(&mut *engine, &[request], budget, |_| models::Next::More).unwrap().remove(0).tokens
}

const GOOD: [u32; 5] = [5, 1, 5, 300, 2];

#[test]
fn sequences_are_continued_as_alone_and_the_end_is_orderly() {
    let server = start(Fails::Sequence, false);
    let ticket = server.service.submit(vec![sequence(&GOOD, 9), sequence(&[7], 3)]).unwrap();
    let ends = ends(ticket, 2);
    assert_eq!(ends[0], (alone(&GOOD, 9), Ok(Ended::Limit)));
    assert_eq!(ends[1], (alone(&[7], 3), Ok(Ended::Limit)));
    nothing_is_held(&server.service);
    server.service.drain();
    server.thread.join().unwrap().unwrap();
    assert_eq!(server.service.phase(), Phase::Stopped);
    assert_eq!(server.service.submit(vec![sequence(&GOOD, 1)]).unwrap_err(), Refusal::Draining);
}

#[test]
fn who_reads_slowly_holds_no_slot_and_gets_all_of_it() {
    let server = start(Fails::Sequence, false);
    let slow = server.service.submit(vec![sequence(&GOOD, 150), sequence(&[7], 9)]).unwrap();
    nothing_is_held(&server.service);
    let meanwhile = server.service.submit(vec![sequence(&[7], 3)]).unwrap();
    assert_eq!(ends(meanwhile, 1)[0].1, Ok(Ended::Limit));
    let slow = ends(slow, 2);
    assert_eq!(slow[0], (alone(&GOOD, 150), Ok(Ended::Limit)));
    assert_eq!(slow[1], (alone(&[7], 9), Ok(Ended::Limit)));
}

#[test]
fn steps_are_made_ready_one_at_a_time_while_nobody_asks() {
    let (word, ready) = channel();
    let server = start_readying(settings(), Fails::Sequence, false, Some(Mutex::new(ready)));
    // It is held in the first one. What comes meanwhile waits for no second one.
    let ticket = server.service.submit(vec![sequence(&[7], 3)]).unwrap();
    word.send(()).unwrap();
    wait(|| server.steps.load(Ordering::SeqCst) >= 3);
    assert_eq!(ends(ticket, 1)[0], (alone(&[7], 3), Ok(Ended::Limit)));
    // Where no more can be made, it goes on without.
    drop(word);
    let ticket = server.service.submit(vec![sequence(&GOOD, 2)]).unwrap();
    assert_eq!(ends(ticket, 1)[0], (alone(&GOOD, 2), Ok(Ended::Limit)));
    server.service.drain();
    server.thread.join().unwrap().unwrap();
}

#[test]
fn who_goes_away_is_not_stepped_for_twice() {
    let server = start(Fails::Sequence, true);
    let gate = server.gate.as_ref().unwrap();
    let [stays, goes] = [0, 1].map(|_| server.service.submit(vec![sequence(&GOOD, 200)]).unwrap());
    let step = || {
        let before = server.steps.load(Ordering::SeqCst);
        gate.send(()).unwrap();
        wait(|| server.steps.load(Ordering::SeqCst) > before);
    };
    (0..6).for_each(|_| step());
    wait(|| server.service.health().running == 2);
    drop(goes);
    // One may have begun before.
    (0..2).for_each(|_| step());
    wait(|| server.service.health().running == 1);
    drop(stays);
    // Nobody is left to step for: the second word may be waited for by nobody.
    (0..2).for_each(|_| gate.send(()).unwrap());
    nothing_is_held(&server.service);
}

#[test]
fn what_is_enough_ends_and_is_counted_as_a_stop() {
    let server = start(Fails::Sequence, true);
    let ticket = server.service.submit(vec![sequence(&GOOD, 200), sequence(&[7], 2)]).unwrap();
    ticket.enough(0);
    drop(server.gate);
    let ends = ends(ticket, 2);
    assert_eq!(ends[0].1, Ok(Ended::Listener));
    assert!(ends[0].0.len() <= 2, "{ends:?}");
    assert_eq!(ends[1].1, Ok(Ended::Limit));
    nothing_is_held(&server.service);
    let metrics = server.service.metrics();
    assert!(metrics.contains("finished_reason=\"stop\"} 1\n"), "{metrics}");
}

#[test]
fn the_queue_has_an_end() {
    let server = start(Fails::Sequence, true);
    let places = SLOTS + QUEUED;
    let tickets: Vec<Ticket> =
        (0..places).map(|_| server.service.submit(vec![sequence(&GOOD, 2)]).unwrap()).collect();
    assert_eq!(server.service.open(), places);
    let full = server.service.submit(vec![sequence(&GOOD, 2)]).unwrap_err();
    assert!(matches!(full, Refusal::Full { after } if after >= Duration::from_secs(1)), "{full:?}");
    // What can never be taken is no matter of waiting.
    let many = vec![sequence(&GOOD, 2); places + 1];
    assert!(matches!(server.service.submit(many), Err(Refusal::Invalid { .. })));
    drop(server.gate);
    let all = tickets.into_iter().map(|ticket| ends(ticket, 1).remove(0).1);
    assert!(all.collect::<Vec<_>>().iter().all(|end| *end == Ok(Ended::Limit)));
    nothing_is_held(&server.service);
    assert!(server.service.submit(vec![sequence(&GOOD, 2)]).is_ok());
}

#[test]
fn what_could_never_run_is_refused_in_words() {
    let server = start(Fails::Sequence, false);
    let hot = Sampling { temperature: -1.0, ..Sampling::default() };
    let mut warm = sequence(&GOOD, 1);
    warm.request.sampling = hot;
    for (asked, words) in [
        (vec![], "there is nothing to continue"),
        (vec![sequence(&[], 1)], "the prompt has no tokens"),
        (vec![sequence(&[512], 1)], "token 512 is beyond the model's vocabulary of 512"),
        (
            vec![sequence(&GOOD, 252)],
            "a prompt of 5 tokens and 252 to add are 257, the server takes 256",
        ),
        (vec![warm], "the temperature is -1"),
        (
            vec![Sequence { logprobs: Some(21), ..sequence(&GOOD, 1) }],
            "of 21 tokens, wanted at most 20",
        ),
    ] {
        let refusal = server.service.submit(asked).unwrap_err().to_string();
        assert!(refusal.contains(words), "{refusal}");
    }
    assert!(server.service.submit(vec![sequence(&GOOD, 251)]).is_ok());
}

/// Good ones around a bad one, which fails once its prompt is read.
fn beside(server: &Server, bad: &[u32]) -> Vec<(Vec<u32>, Result<Ended, Why>)> {
    let asked = vec![sequence(&GOOD, 20), sequence(bad, 20), sequence(&[7, 8], 20)];
    ends(server.service.submit(asked).unwrap(), 3)
}

#[test]
fn one_request_that_fails_ends_alone() {
    for fails in [Fails::Sequence, Fails::Logits] {
        let server = start(fails, false);
        // NaN fills the step's logits, so that one runs alone.
        let ends = match fails {
            Fails::Logits => {
                let bad = server.service.submit(vec![sequence(&[1, BAD, 2], 5)]).unwrap();
                let bad = ends(bad, 1).remove(0);
                let good = ends(server.service.submit(vec![sequence(&GOOD, 20)]).unwrap(), 1);
                [good, vec![bad], vec![(alone(&[7, 8], 20), Ok(Ended::Limit))]].concat()
            }
            _ => beside(&server, &[1, BAD, 2]),
        };
        assert_eq!(ends[0], (alone(&GOOD, 20), Ok(Ended::Limit)), "{fails:?}");
        assert_eq!(ends[2], (alone(&[7, 8], 20), Ok(Ended::Limit)), "{fails:?}");
        assert!(matches!(&ends[1], (tokens, Err(Why::Engine(_))) if tokens.is_empty()), "{ends:?}");
        nothing_is_held(&server.service);
        let health = server.service.health();
        assert_eq!(health.phase, Phase::Ready);
        assert!(health.failed_steps >= 1 && health.last_error.is_some(), "{health:?}");
    }
}

#[test]
fn a_failure_that_nobody_is_to_blame_for_ends_nobody() {
    let server = start(Fails::Pairs, false);
    let asked = vec![sequence(&GOOD, 6), sequence(&[7, 8, 9], 6)];
    let ends = ends(server.service.submit(asked).unwrap(), 2);
    assert_eq!(ends[0], (alone(&GOOD, 6), Ok(Ended::Limit)));
    assert_eq!(ends[1], (alone(&[7, 8, 9], 6), Ok(Ended::Limit)));
    nothing_is_held(&server.service);
    assert!(server.service.health().failed_steps >= 1);
}

#[test]
fn a_device_that_is_lost_ends_the_service() {
    let server = start(Fails::Device, false);
    let ends = beside(&server, &[1, BAD, 2]);
    assert!(ends.iter().all(|(_, end)| matches!(end, Err(Why::Engine(_)))), "{ends:?}");
    let error = server.thread.join().unwrap().unwrap_err();
    assert!(error.to_string().contains("the device is lost"), "{error}");
    assert!(matches!(server.service.phase(), Phase::Failed(why) if why.contains("lost")));
    let refused = server.service.submit(vec![sequence(&GOOD, 1)]).unwrap_err();
    assert!(matches!(refused, Refusal::Failed(_)), "{refused:?}");
}

#[test]
fn a_panic_of_the_engine_is_told_and_nobody_waits() {
    let server = start(Fails::Panics, false);
    let mut ticket = server.service.submit(vec![sequence(&[BAD, 1], 4)]).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(ticket.next()), None);
    assert!(server.thread.join().is_err());
    assert_eq!(server.service.phase(), Phase::Failed("the engine's thread panicked".to_owned()));
    assert_eq!(server.service.open(), 0);
}

#[test]
fn a_service_that_waits_no_longer_breaks_off() {
    let server = start(Fails::Sequence, true);
    let gate = server.gate.unwrap();
    let ticket = server.service.submit(vec![sequence(&GOOD, 200)]).unwrap();
    gate.send(()).unwrap();
    server.service.drain();
    assert_eq!(server.service.phase(), Phase::Draining);
    server.service.abort();
    drop(gate);
    assert_eq!(ends(ticket, 1).remove(0).1, Err(Why::Aborted));
    server.thread.join().unwrap().unwrap();
}

#[test]
fn an_engine_that_cannot_be_built_is_told() {
    let build = Box::new(|| Err(BuildError::from("there is no such model")));
    let (service, thread) = Service::start(settings(), build).unwrap();
    assert_eq!(thread.join().unwrap().unwrap_err().to_string(), "there is no such model");
    assert_eq!(service.phase(), Phase::Failed("there is no such model".to_owned()));
}

#[test]
fn every_metric_is_set_by_what_happens() {
    let settings = Settings { swap_space: 64 << 20, ..settings() };
    let server = start_with(settings, Fails::Sequence, false);
    let service = &server.service;
    let before = service.metrics();
    assert!(!before.contains("start_to_first_token"), "nothing was said yet: {before}");
    beside(&server, &[1, BAD, 2]);
    service.count_settings(2, 20);
    // More than the caches hold, so that somebody gives way.
    let long: Vec<u32> = (0..120).collect();
    let wide = vec![sequence(&long, 130); SLOTS];
    ends(service.submit(wide).unwrap(), SLOTS);
    nothing_is_held(service);
    let text = service.metrics();
    let value = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(value("vllm:generation_tokens_total"), 40.0 + 130.0 * SLOTS as f64);
    assert_eq!(value("vllm:prompt_tokens_total"), 7.0 + 120.0 * SLOTS as f64);
    assert_eq!(value("vllm:request_generation_tokens_count"), 2.0 + SLOTS as f64);
    assert_eq!(value("vllm:kv_cache_usage_perc"), 0.0);
    // Those that ran in the step that failed were not saved.
    assert!(value("firstlight:preemptions_saved_total") < value("vllm:num_preemptions_total"));
    assert_eq!(value("firstlight:preempted_bytes"), 0.0);
    assert!(text.contains("state_snapshot_bytes{model_name=\"mini\",engine=\"0\",tier=\"ram\"} 0"));
    for name in [
        "firstlight:preemptions_saved_total",
        "vllm:iteration_tokens_total_count",
        "vllm:time_to_first_token_seconds_count",
        "vllm:inter_token_latency_seconds_count",
        "vllm:request_time_per_output_token_seconds_count",
        "vllm:e2e_request_latency_seconds_count",
        "vllm:request_queue_time_seconds_count",
        "vllm:request_prefill_time_seconds_sum",
        "vllm:request_decode_time_seconds_sum",
        "vllm:request_inference_time_seconds_sum",
        "vllm:request_prompt_tokens_sum",
        "vllm:request_params_n_sum",
        "vllm:request_params_max_tokens_sum",
        "vllm:cache_config_info",
        "firstlight:state_slots{model_name=\"mini\",engine=\"0\",use=\"free\"}",
        "firstlight:failed_steps_total",
        "firstlight:start_to_first_token_seconds",
        "vllm:request_success_total{model_name=\"mini\",engine=\"0\",finished_reason=\"length\"}",
        "vllm:request_success_total{model_name=\"mini\",engine=\"0\",finished_reason=\"error\"}",
    ] {
        assert!(value(name) > 0.0, "{name} in {text}");
    }
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn a_kept_state_that_is_wrong_turns_the_cache_off() {
    let prompt: Vec<u32> = (0..150).map(|at| at * 7 % 499).collect();
    for (fails, mismatches) in [(Fails::Sequence, 0), (Fails::States, 1)] {
        let settings =
            Settings { snapshots: 1, verify_cache: 1.0, step_tokens: None, ..settings() };
        let server = start_with(settings, fails, false);
        let cached = || {
            let mut ticket = server.service.submit(vec![sequence(&prompt, 4)]).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let mut cached = None;
            while let Some(update) = runtime.block_on(ticket.next()) {
                if let Update::Begun { cached: tokens, .. } = update {
                    cached = Some(tokens);
                }
            }
            cached.unwrap()
        };
        let value = |name: &str| {
            let metrics = server.service.metrics();
            let line = metrics.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
            line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
        };
        assert_eq!((cached(), cached()), (0, 128), "{fails:?}");
        let on_device = "state_snapshot_bytes{model_name=\"mini\",engine=\"0\",tier=\"device\"}";
        assert!(mismatches > 0 || value(&format!("firstlight:{on_device}")) > 0);
        wait(|| value("firstlight:prefix_cache_verified_total") == 1);
        assert_eq!(value("firstlight:prefix_cache_mismatch_total"), mismatches, "{fails:?}");
        // Where it was wrong, nothing is kept any more.
        nothing_is_held(&server.service);
        let health = server.service.health();
        assert_eq!((cached(), health.snapshots), if mismatches > 0 { (0, 0) } else { (128, 1) });
        assert_eq!(health.last_error.is_some(), mismatches > 0);
    }
}
