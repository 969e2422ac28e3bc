//! Conversations over several turns: a kept sequence continues, and the answers stay the same.

use super::{BUDGET, Random, engine, request};
use crate::subject::tokens;
use models::{
    Capacity, FinishReason, GenerationControl, Request, RequestId, Scheduler, SchedulerEvent,
    StepBudget, generate,
};

/// The tokens of a request, the number of cached prompt tokens, and how it ended.
struct AnsweredRequest {
    tokens: Vec<u32>,
    reused: usize,
    ended: Option<FinishReason>,
}

/// Runs a request to its end, or for this many tokens.
fn answered(scheduler: &mut Scheduler<'_>, request: Request, most: usize) -> AnsweredRequest {
    let id = scheduler.submit(request).unwrap();
    let mut answered = AnsweredRequest { tokens: Vec::new(), reused: 0, ended: None };
    while answered.ended.is_none() && answered.tokens.len() < most {
        let events = scheduler.step().unwrap();
        answered.reused = scheduler.reused(id).unwrap_or(answered.reused);
        for event in events {
            match event {
                SchedulerEvent::Token { token, .. } => answered.tokens.push(token),
                SchedulerEvent::Finished { ended, .. } => answered.ended = Some(ended),
                SchedulerEvent::Begun { .. }
                | SchedulerEvent::Scored { .. }
                | SchedulerEvent::Embedded { .. }
                | SchedulerEvent::Preempted { .. } => {}
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
        let budget = StepBudget {
            tokens: 1000,
            max_mixed_tokens: 1000,
            decode_steps_in_flight: 1,
            ..BUDGET
        };
        generate(&mut *fresh, &requests, budget, |_| GenerationControl::More)
            .unwrap()
            .remove(0)
            .tokens
    };
    let mut engine = engine(name, Capacity { sequences: 1, tokens: 400 });
    // Eight steps in flight without a kept sequence: a kept one must not be read beyond its end.
    let budget =
        StepBudget { tokens: 50, max_mixed_tokens: 50, decode_steps_in_flight: 8, ..BUDGET };
    let mut scheduler = Scheduler::new(&mut *engine, budget);
    let keep =
        |prompt: &[u32], limit: usize| Request { keep: true, ..request(prompt.to_vec(), limit) };
    let first = tokens(7, 70);
    let answer = answered(&mut scheduler, keep(&first, 12), 99);
    assert_eq!((&answer.tokens, answer.reused), (&fresh(&first, 12), 0), "{name}");
    // The last token of an answer at its limit was not read.
    let mut said = [&first[..], &answer.tokens, &tokens(8, 20)].concat();
    let second = answered(&mut scheduler, keep(&said, 9), 99);
    assert_eq!((&second.tokens, second.reused), (&fresh(&said, 9), 70 + 11), "{name}");
    // A sequence ended by a stop token has read everything before it.
    said.extend(&second.tokens);
    said.extend(tokens(9, 3));
    let all = fresh(&said, 10);
    let at = (1..10).find(|at| !all[..*at].contains(&all[*at])).unwrap();
    let third =
        answered(&mut scheduler, Request { stop_ids: vec![all[at]], ..keep(&said, 10) }, 99);
    assert_eq!(
        (&third.tokens[..], third.ended),
        (&all[..at], Some(FinishReason::StopId)),
        "{name}"
    );
    let kept = said.len() + at;
    said.extend(&all[..=at]);
    // A cancelled sequence is kept too.
    let fourth = answered(&mut scheduler, keep(&said, 10), 4);
    assert_eq!((&fourth.tokens, fourth.reused), (&fresh(&said, 4), kept), "{name}");
    // Other prompts, and the same one again, are prefilled whole: a state cannot be rolled back.
    for prompt in [&said[..], &said[1..], &tokens(3, 90)] {
        let other = answered(&mut scheduler, keep(prompt, 3), 99);
        assert_eq!((&other.tokens, other.reused), (&fresh(prompt, 3), 0), "{name}");
    }
    assert_eq!((scheduler.usage().kept, scheduler.usage().free_slots), (1, 0));
    // A request that needs all blocks gets them.
    let long = tokens(5, 380);
    let whole = answered(&mut scheduler, request(long.clone(), 5), 99);
    assert_eq!(whole.tokens, fresh(&long, 5), "{name}");
    let usage = scheduler.usage();
    assert_eq!((usage.kept, usage.free_blocks), (0, usage.blocks));
}

#[test]
fn conversation_is_prefilled_once() {
    conversation("kimi-linear-mini");
    conversation("granite-hybrid-mini");
}

/// A simulated user.
struct SimulatedUser {
    said: Vec<u32>,
    turns: usize,
    /// The active request, the expected answer, and the answer so far.
    open: Option<(RequestId, Vec<u32>)>,
    got: Vec<u32>,
}

/// More users than slots: those whose sequence is still kept continue it, others are prefilled from the start, with the
/// same answers.
#[test]
fn conversations_on_few_slots_get_the_same_answers() {
    let name = "granite-hybrid-mini";
    let mut fresh = engine(name, Capacity { sequences: 1, tokens: 400 });
    let mut engine = engine(name, Capacity { sequences: 3, tokens: 130 });
    let mut scheduler =
        Scheduler::new(&mut *engine, StepBudget { decode_steps_in_flight: 1, ..BUDGET });
    let mut random = Random(5);
    let talker = |_| SimulatedUser { said: Vec::new(), turns: 6, open: None, got: Vec::new() };
    let mut talkers: Vec<SimulatedUser> = (0..4).map(talker).collect();
    let (mut reused, mut prefilled, mut seed) = (0, 0, 100);
    while !scheduler.is_idle() || talkers.iter().any(|talker| talker.turns > 0) {
        for talker in &mut talkers {
            if talker.open.is_some() || talker.turns == 0 || random.below(3) > 0 {
                continue;
            }
            (talker.turns, seed) = (talker.turns - 1, seed + 1);
            talker.said.extend(tokens(seed, 1 + random.below(25)));
            let asked = request(talker.said.clone(), 1 + random.below(9));
            let budget = StepBudget {
                tokens: 1000,
                max_mixed_tokens: 1000,
                decode_steps_in_flight: 1,
                ..BUDGET
            };
            let requests = std::slice::from_ref(&asked);
            let want = generate(&mut *fresh, requests, budget, |_| GenerationControl::More)
                .unwrap()
                .remove(0);
            let id = scheduler.submit(Request { keep: true, ..asked }).unwrap();
            (talker.open, talker.got) = (Some((id, want.tokens)), Vec::new());
        }
        for event in scheduler.step().unwrap() {
            let id = event.request();
            let mine =
                |talker: &&mut SimulatedUser| talker.open.as_ref().is_some_and(|open| open.0 == id);
            let talker = talkers.iter_mut().find(mine).unwrap();
            match event {
                SchedulerEvent::Token { token, .. } => {
                    if talker.got.is_empty() && talker.turns < 5 {
                        // It may have ended in this step, and is then unknown.
                        match scheduler.reused(id) {
                            Some(0) => prefilled += 1,
                            Some(_) => reused += 1,
                            None => {}
                        }
                    }
                    talker.got.push(token);
                }
                SchedulerEvent::Finished { .. } => {
                    let want = talker.open.take().map(|(_, want)| want);
                    assert_eq!(Some(&talker.got), want.as_ref());
                    talker.said.extend(&talker.got);
                }
                SchedulerEvent::Begun { .. }
                | SchedulerEvent::Scored { .. }
                | SchedulerEvent::Embedded { .. }
                | SchedulerEvent::Preempted { .. } => {}
            }
        }
    }
    assert!(reused > 4 && prefilled > 2, "{reused} turns continued, {prefilled} were prefilled");
}
