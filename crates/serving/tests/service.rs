//! Tests of a service over an engine that tests can block and make fail.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod guarded;

use guarded::{BAD, Fault, FaultyEngine, engine};
use models::{Engine, FinishReason, LogitsOf, Request, Sampling, generate};
use serving::{
    EngineError, MetricLabels, Sequence, SequenceError, Service, ServiceLimits, ServicePhase,
    ServiceSettings, SubmitError, Ticket, TokenRules, Update,
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
    thread: JoinHandle<Result<(), EngineError>>,
    steps: Arc<AtomicUsize>,
    gate: Option<Sender<()>>,
}

fn settings() -> ServiceSettings {
    let limits = ServiceLimits {
        sequences: SLOTS,
        queued: QUEUED,
        tokens: TOKENS,
        vocabulary: 512,
        logprobs: 20,
    };
    let labels = MetricLabels { model: "mini".to_owned(), engine: "0".to_owned() };
    // Few tokens per step, so that prompts take several steps.
    ServiceSettings {
        limits,
        step_tokens: Some(4),
        snapshots: 0,
        swap_space: 0,
        verify_cache: 0.0,
        labels,
        process_start: Instant::now(),
    }
}

fn start(fails: Fault, gated: bool) -> Server {
    start_with(settings(), fails, gated)
}

fn start_with(settings: ServiceSettings, fails: Fault, gated: bool) -> Server {
    start_preparing(settings, fails, gated, None)
}

/// The same with an engine that prepares a graph for each message.
fn start_preparing(
    settings: ServiceSettings,
    fails: Fault,
    gated: bool,
    ready: Option<Mutex<Receiver<()>>>,
) -> Server {
    let steps = Arc::new(AtomicUsize::new(0));
    let (gate, waiting) = channel();
    let (gate, waiting) =
        if gated { (Some(gate), Some(Mutex::new(waiting))) } else { (None, None) };
    let own = Arc::clone(&steps);
    let build = Box::new(move || {
        let guarded = FaultyEngine { inner: engine(), gate: waiting, fails, steps: own, ready };
        Ok(Box::new(guarded) as Box<dyn Engine>)
    });
    let (service, thread) = Service::start(settings, build).unwrap();
    wait(|| service.phase() != ServicePhase::Loading);
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
        bypass_cache: false,
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

/// The tokens and the end of each sequence of a ticket.
fn ends(mut ticket: Ticket, count: usize) -> Vec<(Vec<u32>, Result<FinishReason, SequenceError>)> {
    let mut all = vec![(Vec::new(), None); count];
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    while let Some(update) = runtime.block_on(ticket.next()) {
        match update {
            Update::Started { .. } | Update::Prompt { .. } | Update::Embedded { .. } => {}
            Update::Token { index, token, .. } => all[index].0.push(token),
            Update::Finished { index, ended } => all[index].1 = Some(Ok(ended)),
            Update::Failed { index, why } => all[index].1 = Some(Err(why)),
        }
    }
    all.into_iter()
        .map(|(tokens, end)| (tokens, end.expect("every sequence sends how it ended")))
        .collect()
}

fn wait_until_released(service: &Service) {
    // A permit is released before the usage is published.
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
    generate(&mut *engine, &[request], budget, |_| models::GenerationControl::More)
        .unwrap()
        .remove(0)
        .tokens
}

const GOOD: [u32; 5] = [5, 1, 5, 300, 2];

#[test]
fn sequences_get_the_tokens_of_a_single_run_and_drain_stops_the_service() {
    let server = start(Fault::Sequence, false);
    let ticket = server.service.submit(vec![sequence(&GOOD, 9), sequence(&[7], 3)]).unwrap();
    let ends = ends(ticket, 2);
    assert_eq!(ends[0], (alone(&GOOD, 9), Ok(FinishReason::Limit)));
    assert_eq!(ends[1], (alone(&[7], 3), Ok(FinishReason::Limit)));
    wait_until_released(&server.service);
    server.service.drain();
    server.thread.join().unwrap().unwrap();
    assert_eq!(server.service.phase(), ServicePhase::Stopped);
    assert_eq!(server.service.submit(vec![sequence(&GOOD, 1)]).unwrap_err(), SubmitError::Draining);
}

#[test]
fn slow_reader_releases_its_slot_and_gets_every_token() {
    let server = start(Fault::Sequence, false);
    let slow = server.service.submit(vec![sequence(&GOOD, 150), sequence(&[7], 9)]).unwrap();
    wait_until_released(&server.service);
    let meanwhile = server.service.submit(vec![sequence(&[7], 3)]).unwrap();
    assert_eq!(ends(meanwhile, 1)[0].1, Ok(FinishReason::Limit));
    let slow = ends(slow, 2);
    assert_eq!(slow[0], (alone(&GOOD, 150), Ok(FinishReason::Limit)));
    assert_eq!(slow[1], (alone(&[7], 9), Ok(FinishReason::Limit)));
}

#[test]
fn graphs_are_prepared_one_at_a_time_while_idle() {
    let (sender, ready) = channel();
    let server = start_preparing(settings(), Fault::Sequence, false, Some(Mutex::new(ready)));
    // The engine blocks in the first preparation. The request that arrives now waits for that one only.
    let ticket = server.service.submit(vec![sequence(&[7], 3)]).unwrap();
    sender.send(()).unwrap();
    wait(|| server.steps.load(Ordering::SeqCst) >= 3);
    assert_eq!(ends(ticket, 1)[0], (alone(&[7], 3), Ok(FinishReason::Limit)));
    // When nothing more can be prepared, serving continues.
    drop(sender);
    let ticket = server.service.submit(vec![sequence(&GOOD, 2)]).unwrap();
    assert_eq!(ends(ticket, 1)[0], (alone(&GOOD, 2), Ok(FinishReason::Limit)));
    server.service.drain();
    server.thread.join().unwrap().unwrap();
}

#[test]
fn next_request_does_not_wait_for_a_preparation() {
    let (sender, ready) = channel();
    let server = start_preparing(settings(), Fault::Sequence, false, Some(Mutex::new(ready)));
    sender.send(()).unwrap();
    let request = || server.service.submit(vec![sequence(&[7], 1)]).unwrap();
    ends(request(), 1);
    // Each preparation blocks until it gets a message. A thread may be descheduled for longer than the engine waits, so
    // one of several requests must be answered without a message.
    let is_answered = (0..10).any(|_| {
        let steps = server.steps.load(Ordering::SeqCst);
        let ticket = request();
        let start = Instant::now();
        let has_run = || server.steps.load(Ordering::SeqCst) > steps;
        while !has_run() && start.elapsed() < Duration::from_millis(500) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let answered = has_run();
        if !answered {
            sender.send(()).unwrap();
        }
        ends(ticket, 1);
        answered
    });
    assert!(is_answered);
    drop(sender);
    server.service.drain();
    server.thread.join().unwrap().unwrap();
}

#[test]
fn disconnected_sequences_are_dropped_before_the_next_step() {
    let server = start(Fault::Sequence, true);
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
    // One step may have started before the drop.
    (0..2).for_each(|_| step());
    wait(|| server.service.health().running == 1);
    drop(stays);
    // No sequence is left, so the second message may have no receiver.
    (0..2).for_each(|_| gate.send(()).unwrap());
    wait_until_released(&server.service);
}

#[test]
fn stopped_sequence_finishes_and_counts_as_stop() {
    let server = start(Fault::Sequence, true);
    let ticket = server.service.submit(vec![sequence(&GOOD, 200), sequence(&[7], 2)]).unwrap();
    ticket.stop(0);
    drop(server.gate);
    let ends = ends(ticket, 2);
    assert_eq!(ends[0].1, Ok(FinishReason::Caller));
    assert!(ends[0].0.len() <= 2, "{ends:?}");
    assert_eq!(ends[1].1, Ok(FinishReason::Limit));
    wait_until_released(&server.service);
    let metrics = server.service.metrics();
    assert!(metrics.contains("finished_reason=\"stop\"} 1\n"), "{metrics}");
}

#[test]
fn full_queue_refuses_submissions() {
    let server = start(Fault::Sequence, true);
    let places = SLOTS + QUEUED;
    let tickets: Vec<Ticket> =
        (0..places).map(|_| server.service.submit(vec![sequence(&GOOD, 2)]).unwrap()).collect();
    assert_eq!(server.service.open(), places);
    let full = server.service.submit(vec![sequence(&GOOD, 2)]).unwrap_err();
    assert!(
        matches!(full, SubmitError::Full { after } if after >= Duration::from_secs(1)),
        "{full:?}"
    );
    // A submission that can never fit is invalid, not queued.
    let many = vec![sequence(&GOOD, 2); places + 1];
    assert!(matches!(server.service.submit(many), Err(SubmitError::Invalid { .. })));
    drop(server.gate);
    let all = tickets.into_iter().map(|ticket| ends(ticket, 1).remove(0).1);
    assert!(all.collect::<Vec<_>>().iter().all(|end| *end == Ok(FinishReason::Limit)));
    wait_until_released(&server.service);
    assert!(server.service.submit(vec![sequence(&GOOD, 2)]).is_ok());
}

#[test]
fn invalid_submissions_are_refused_with_the_reason() {
    let server = start(Fault::Sequence, false);
    let hot = Sampling { temperature: -1.0, ..Sampling::default() };
    let mut warm = sequence(&GOOD, 1);
    warm.request.sampling = hot;
    for (asked, words) in [
        (vec![], "the request has no prompt"),
        (vec![sequence(&[], 1)], "the prompt has no tokens"),
        (vec![sequence(&[512], 1)], "token 512 is beyond the model's vocabulary of 512"),
        (
            vec![sequence(&GOOD, 252)],
            "5 prompt tokens and 252 tokens to generate exceed the limit of 256",
        ),
        (vec![warm], "the temperature is -1"),
        (
            vec![Sequence { logprobs: Some(21), ..sequence(&GOOD, 1) }],
            "of 21 tokens were requested, the limit is 20",
        ),
    ] {
        let refusal = server.service.submit(asked).unwrap_err().to_string();
        assert!(refusal.contains(words), "{refusal}");
    }
    assert!(server.service.submit(vec![sequence(&GOOD, 251)]).is_ok());
}

/// Two good sequences around a bad one, which fails once its prompt is prefilled.
fn submit_around(
    server: &Server,
    bad: &[u32],
) -> Vec<(Vec<u32>, Result<FinishReason, SequenceError>)> {
    let asked = vec![sequence(&GOOD, 20), sequence(bad, 20), sequence(&[7, 8], 20)];
    ends(server.service.submit(asked).unwrap(), 3)
}

#[test]
fn failing_request_ends_without_ending_others() {
    for fails in [Fault::Sequence, Fault::Logits] {
        let server = start(fails, false);
        // NaN fills the logits of the whole step, so the bad sequence runs alone.
        let ends = match fails {
            Fault::Logits => {
                let bad = server.service.submit(vec![sequence(&[1, BAD, 2], 5)]).unwrap();
                let bad = ends(bad, 1).remove(0);
                let good = ends(server.service.submit(vec![sequence(&GOOD, 20)]).unwrap(), 1);
                [good, vec![bad], vec![(alone(&[7, 8], 20), Ok(FinishReason::Limit))]].concat()
            }
            _ => submit_around(&server, &[1, BAD, 2]),
        };
        assert_eq!(ends[0], (alone(&GOOD, 20), Ok(FinishReason::Limit)), "{fails:?}");
        assert_eq!(ends[2], (alone(&[7, 8], 20), Ok(FinishReason::Limit)), "{fails:?}");
        assert!(
            matches!(&ends[1], (tokens, Err(SequenceError::Engine(_))) if tokens.is_empty()),
            "{ends:?}"
        );
        wait_until_released(&server.service);
        let health = server.service.health();
        assert_eq!(health.phase, ServicePhase::Ready);
        assert!(health.failed_steps >= 1 && health.last_error.is_some(), "{health:?}");
    }
}

#[test]
fn failure_of_a_combination_ends_no_sequence() {
    let server = start(Fault::Pairs, false);
    let asked = vec![sequence(&GOOD, 6), sequence(&[7, 8, 9], 6)];
    let ends = ends(server.service.submit(asked).unwrap(), 2);
    assert_eq!(ends[0], (alone(&GOOD, 6), Ok(FinishReason::Limit)));
    assert_eq!(ends[1], (alone(&[7, 8, 9], 6), Ok(FinishReason::Limit)));
    wait_until_released(&server.service);
    assert!(server.service.health().failed_steps >= 1);
}

#[test]
fn lost_device_ends_the_service() {
    let server = start(Fault::Device, false);
    let ends = submit_around(&server, &[1, BAD, 2]);
    assert!(ends.iter().all(|(_, end)| matches!(end, Err(SequenceError::Engine(_)))), "{ends:?}");
    let error = server.thread.join().unwrap().unwrap_err();
    assert!(error.to_string().contains("the device is lost"), "{error}");
    assert!(matches!(server.service.phase(), ServicePhase::Failed(why) if why.contains("lost")));
    let refused = server.service.submit(vec![sequence(&GOOD, 1)]).unwrap_err();
    assert!(matches!(refused, SubmitError::Failed(_)), "{refused:?}");
}

#[test]
fn engine_panic_ends_all_tickets_and_sets_the_phase() {
    let server = start(Fault::Panics, false);
    let mut ticket = server.service.submit(vec![sequence(&[BAD, 1], 4)]).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(ticket.next()), None);
    assert!(server.thread.join().is_err());
    assert_eq!(
        server.service.phase(),
        ServicePhase::Failed("the engine's thread panicked".to_owned())
    );
    assert_eq!(server.service.open(), 0);
}

#[test]
fn abort_ends_open_sequences() {
    let server = start(Fault::Sequence, true);
    let gate = server.gate.unwrap();
    let ticket = server.service.submit(vec![sequence(&GOOD, 200)]).unwrap();
    gate.send(()).unwrap();
    server.service.drain();
    assert_eq!(server.service.phase(), ServicePhase::Draining);
    server.service.abort();
    drop(gate);
    assert_eq!(ends(ticket, 1).remove(0).1, Err(SequenceError::Aborted));
    server.thread.join().unwrap().unwrap();
}

#[test]
fn failed_build_is_returned_and_sets_the_phase() {
    let build = Box::new(|| Err(EngineError::from("there is no such model")));
    let (service, thread) = Service::start(settings(), build).unwrap();
    assert_eq!(thread.join().unwrap().unwrap_err().to_string(), "there is no such model");
    assert_eq!(service.phase(), ServicePhase::Failed("there is no such model".to_owned()));
}

#[test]
fn events_set_every_metric() {
    let settings = ServiceSettings { swap_space: 64 << 20, ..settings() };
    let server = start_with(settings, Fault::Sequence, false);
    let service = &server.service;
    let before = service.metrics();
    assert!(!before.contains("start_to_first_token"), "no token was generated yet: {before}");
    submit_around(&server, &[1, BAD, 2]);
    service.count_settings(2, 20);
    // More tokens than the cache has blocks for, so that some sequence is preempted.
    let long: Vec<u32> = (0..120).collect();
    let wide = vec![sequence(&long, 130); SLOTS];
    ends(service.submit(wide).unwrap(), SLOTS);
    wait_until_released(service);
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
    // Sequences of the failed step were preempted without saving their states.
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
fn wrong_cached_state_disables_the_prefix_cache() {
    let prompt: Vec<u32> = (0..150).map(|at| at * 7 % 499).collect();
    for (fails, mismatches) in [(Fault::Sequence, 0), (Fault::States, 1)] {
        let settings =
            ServiceSettings { snapshots: 1, verify_cache: 1.0, step_tokens: None, ..settings() };
        let server = start_with(settings, fails, false);
        let cached = || {
            let mut ticket = server.service.submit(vec![sequence(&prompt, 4)]).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let mut cached = None;
            while let Some(update) = runtime.block_on(ticket.next()) {
                if let Update::Started { cached: tokens, .. } = update {
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
        // After a mismatch the prefix cache is disabled.
        wait_until_released(&server.service);
        let health = server.service.health();
        assert_eq!((cached(), health.snapshots), if mismatches > 0 { (0, 0) } else { (128, 1) });
        assert_eq!(health.last_error.is_some(), mismatches > 0);
    }
}
