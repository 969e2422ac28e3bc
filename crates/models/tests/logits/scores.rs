//! Log-probabilities of prompts equal those of a softmax over each token's logits, whatever else runs.

use crate::subject::{Subject, tokens};
use facts::BackendKind;
use models::{
    Batch, Engine, FinishReason, LogitsOf, LogitsSelection, Request, RequestId, Sampling,
    Scheduler, SchedulerEvent, StepBudget, TokenLogprobs, engine_kind,
};
use std::collections::BTreeMap;
use std::time::Duration;

const BUDGET: StepBudget = StepBudget {
    tokens: 64,
    max_mixed_tokens: 32,
    max_mixed_step: Duration::MAX,
    decode_steps_in_flight: 4,
};

fn engines(sequences: usize) -> impl Iterator<Item = Box<dyn Engine>> {
    let subject = Subject::draw(("granite-hybrid-mini", &[]));
    let devices = [BackendKind::Cpu, BackendKind::Cuda].map(backends::open).into_iter().flatten();
    devices.map(move |device| {
        let storage = engine_kind(&device).unwrap().storages[0];
        subject.engine_on(device, storage, sequences)
    })
}

fn request(prompt: Vec<u32>, limit: usize) -> Request {
    Request {
        prompt,
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

/// The log-probabilities of a prompt from the engine's logits.
fn expected(engine: &mut dyn Engine, prompt: &[u32], count: usize) -> Vec<TokenLogprobs> {
    let logits = engine.step(&Batch::new().with(0, prompt), LogitsSelection::Every).unwrap();
    engine.reset(0);
    let rows = logits.chunks_exact(logits.len() / prompt.len());
    let scored = rows.zip(&prompt[1..]).map(|(row, next)| {
        let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
        let log = |token: usize| (f64::from(row[token]) - sum.ln()) as f32;
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
        let likeliest = order.into_iter().take(count).map(|token| (token as u32, log(token)));
        TokenLogprobs { chosen: log(*next as usize), likeliest: likeliest.collect() }
    });
    scored.collect()
}

fn assert_near(got: &[TokenLogprobs], want: &[TokenLogprobs], most: f32) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!((got.chosen - want.chosen).abs() < most, "{got:?}, expected {want:?}");
        assert_eq!(got.likeliest.len(), want.likeliest.len());
        for (got, want) in got.likeliest.iter().zip(&want.likeliest) {
            assert!((got.1 - want.1).abs() < most, "{got:?}, expected {want:?}");
        }
    }
}

/// The result of each request: its scores, its tokens, and the reason of its end.
type Outcome = (Option<Vec<TokenLogprobs>>, Vec<u32>, Option<FinishReason>);

fn run(scheduler: &mut Scheduler<'_>) -> BTreeMap<RequestId, Outcome> {
    let mut all: BTreeMap<RequestId, Outcome> = BTreeMap::new();
    while !scheduler.is_idle() {
        for event in scheduler.step().unwrap() {
            let one = all.entry(event.request()).or_default();
            match event {
                SchedulerEvent::Scored { request } => {
                    assert!(one.0.is_none() && one.1.is_empty(), "once, before any token");
                    one.0 = scheduler.take_scores(request);
                    assert!(scheduler.take_scores(request).is_none());
                }
                SchedulerEvent::Token { token, .. } => one.1.push(token),
                SchedulerEvent::Finished { ended, .. } => one.2 = Some(ended),
                SchedulerEvent::Begun { .. }
                | SchedulerEvent::Embedded { .. }
                | SchedulerEvent::Preempted { .. } => {}
            }
        }
    }
    all
}

#[test]
fn prompt_scores_equal_the_softmax_of_logits() {
    for mut engine in engines(3) {
        let (long, short) = (tokens(3, 180), tokens(4, 9));
        let most =
            if engine.device().capabilities().backend == BackendKind::Cuda { 0.05 } else { 1e-4 };
        let want = [expected(&mut *engine, &long, 5), expected(&mut *engine, &short, 0)];
        let mut scheduler = Scheduler::new(&mut *engine, BUDGET).with_prefix_cache(1);
        // The same prompt without scores is in the prefix cache, which a scored one does not use.
        let plain = scheduler.submit(request(long.clone(), 4)).unwrap();
        let answer = run(&mut scheduler)[&plain].1.clone();
        assert_eq!(answer.len(), 4);
        let mut scored = |prompt: &[u32], limit, count| {
            scheduler.submit_guided(request(prompt.to_vec(), limit), None, Some(count)).unwrap()
        };
        let ids = [
            scored(&long, 4, 5),
            scored(&short, 0, 0),
            scored(&short[..1], 0, 3),
            scored(&short[..1], 2, 3),
        ];
        let all = run(&mut scheduler);
        let of = |at: usize| &all[&ids[at]];
        assert_near(of(0).0.as_ref().unwrap(), &want[0], most);
        assert_eq!((&of(0).1, of(0).2), (&answer, Some(FinishReason::Limit)));
        assert_near(of(1).0.as_ref().unwrap(), &want[1], most);
        assert_eq!((of(1).1.len(), of(1).2), (0, Some(FinishReason::Limit)));
        // A prompt of one token has no scores.
        assert_eq!((of(2).0.as_deref(), of(2).1.len()), (Some(&[][..]), 0));
        assert_eq!((of(3).0.as_deref(), of(3).1.len()), (Some(&[][..]), 2));
    }
}

#[test]
fn prompt_scores_survive_preemption() {
    for mut engine in engines(4) {
        let prompt = tokens(7, 170);
        let want = expected(&mut *engine, &prompt, 2);
        let most =
            if engine.device().capabilities().backend == BackendKind::Cuda { 0.05 } else { 1e-4 };
        // Together they need more blocks than there are: the younger ones are preempted and start again.
        let blocks = engine.pages().free_blocks();
        let answer = (blocks * 64 / 3).saturating_sub(prompt.len()).max(64);
        let mut scheduler = Scheduler::new(&mut *engine, BUDGET);
        let ids: Vec<_> = (0..4)
            .map(|_| {
                let asked = request(prompt.clone(), answer);
                scheduler.submit_guided(asked, None, Some(2)).unwrap()
            })
            .collect();
        let all = run(&mut scheduler);
        for id in ids {
            let (scores, tokens, _) = &all[&id];
            assert_near(scores.as_ref().unwrap(), &want, most);
            assert_eq!(tokens.len(), answer);
        }
    }
}
