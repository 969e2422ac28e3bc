//! The ends of turns: the next message is read behind them, and answered as if all of it had been read anew.

use crate::prefixes::{Answer, BUDGET, Fault, Fresh, MOST, Planted, answers, engine, request};
use crate::subject::tokens;
use models::{Engine, LogitsOf, Request, Scheduler, StepBudget};

/// What stands behind an answer, in place of a template's.
const BETWEEN: [u32; 3] = [7, 11, 13];

fn turn(prompt: &[u32], limit: usize) -> Request {
    Request { limit, turn: true, ..request(prompt, 0) }
}

fn answer(scheduler: &mut Scheduler<'_>, request: Request) -> Answer {
    answers(scheduler, vec![request]).remove(0)
}

/// A conversation so far, with a next message of so many tokens.
fn next(prompt: &[u32], answer: &Answer, message: &[u32]) -> Vec<u32> {
    [prompt, &answer.tokens, &BETWEEN, message].concat()
}

fn conversations(name: &str) {
    let mut fresh = Fresh(engine(name, 1));
    let mut engine = engine(name, 6);
    let mut scheduler = Scheduler::new(&mut *engine, BUDGET).with_prefix_cache(3);
    let mut seed = 100;
    // Where turns end: before, at and behind the ends of blocks. Of an answer of 2 tokens the second is never read.
    for length in [1, 61, 62, 63, 64, 126, 127, 190] {
        seed += 10;
        let mut prompt = tokens(seed, length);
        let mut exact = 0;
        for (turns, message) in [1, 5, 64, 3].into_iter().enumerate() {
            let answered = answer(&mut scheduler, turn(&prompt, 2));
            let differs = fresh.differs(&prompt, &answered);
            assert!(differs <= MOST, "{name}: {length}, turn {turns}: {differs}");
            // Or further, where one of those others left the end of a block.
            assert!(answered.reused >= exact, "{name}: {length}, turn {turns}: {answered:?}");
            // Two others take it up elsewhere, and a stranger comes between.
            exact = prompt.len() + 1;
            let following = next(&prompt, &answered, &tokens(seed + 1 + turns as u32, message));
            for other in [5, 6] {
                let beside = next(&prompt, &answered, &tokens(other, 9));
                let answered = answer(&mut scheduler, request(&beside, 0));
                assert!(answered.reused == exact || (other == 6 && answered.reused > exact));
                assert!(fresh.differs(&beside, &answered) <= MOST);
            }
            answer(&mut scheduler, request(&tokens(seed + 7, 20), 0));
            prompt = following;
        }
        assert!(scheduler.usage().snapshots <= 3);
    }
    drop(scheduler);
    assert_eq!(engine.pages().free_blocks(), engine.pages().blocks());
}

#[test]
fn granite_goes_on_exactly_where_a_turn_ended() {
    conversations("granite-hybrid-mini");
}

#[test]
fn kimi_goes_on_exactly_where_a_turn_ended() {
    conversations("kimi-linear-mini");
}

#[test]
fn a_token_that_ends_an_answer_is_not_read() {
    let mut engine = engine("granite-hybrid-mini", 6);
    let mut scheduler = Scheduler::new(&mut *engine, BUDGET).with_prefix_cache(3);
    let prompt = tokens(30, 50);
    let free = answer(&mut scheduler, request(&prompt, 0)).tokens;
    let stopped = Request { stop_ids: vec![free[1]], ..turn(&prompt, 9) };
    let answered = answer(&mut scheduler, stopped);
    assert_eq!(answered.tokens, free[..1]);
    let second = next(&prompt, &answered, &[9]);
    assert_eq!(answer(&mut scheduler, request(&second, 0)).reused, 51);
    // One that was cancelled, and one that nobody is likely to go on from, leave nothing.
    let id = scheduler.submit(turn(&tokens(31, 40), 9)).unwrap();
    (0..3).for_each(|_| drop(scheduler.step().unwrap()));
    assert!(scheduler.cancel(id));
    answer(&mut scheduler, request(&tokens(32, 40), 0));
    assert_eq!(scheduler.usage().snapshots, 1);
}

/// A token that was not there before, in the midst of what is chosen at once: two come by steps, then eight.
fn within(tokens: &[u32]) -> usize {
    let new = |at: &usize| !tokens[..*at].contains(&tokens[*at]);
    (3..tokens.len()).filter(new).find(|at| (at - 2) % 8 != 7).expect("a new token within a burst")
}

/// How far answers differ that follow turns which tokens ended, at once.
fn behind_ended_turns(name: &str, engine: &mut dyn Engine) -> [f32; 2] {
    let mut fresh = Fresh(crate::prefixes::engine(name, 1));
    let budget = StepBudget { ahead: 8, ..BUDGET };
    let mut scheduler = Scheduler::new(engine, budget).with_prefix_cache(7);
    // Two together, which end in different places.
    let prompts = [tokens(40, 62), tokens(43, 190)];
    let asked =
        |at: usize| Request { limit: 24, logits: LogitsOf::None, ..request(&prompts[at], 0) };
    let free = answers(&mut scheduler, vec![asked(0), asked(1)]);
    let last = [0, 1].map(|at| within(&free[at].tokens));
    let stopped =
        |at: usize| Request { stop_ids: vec![free[at].tokens[last[at]]], turn: true, ..asked(at) };
    let answered = answers(&mut scheduler, vec![stopped(0), stopped(1)]);
    let following = [0, 1].map(|at| {
        assert_eq!(answered[at].tokens, free[at].tokens[..last[at]]);
        next(&prompts[at], &answered[at], &tokens(41, 5))
    });
    // Before there was time for anything else.
    let asked = following.iter().map(|following| request(following, 0)).collect();
    let answered = answers(&mut scheduler, asked);
    [0, 1].map(|at| {
        assert_eq!(answered[at].reused, prompts[at].len() + last[at], "{name}");
        fresh.differs(&following[at], &answered[at])
    })
}

#[test]
fn a_turn_that_a_token_ended_is_kept_at_its_end_however_many_were_chosen_at_once() {
    for name in ["granite-hybrid-mini", "kimi-linear-mini"] {
        let mut engine = engine(name, 10);
        let differs = behind_ended_turns(name, &mut *engine);
        assert!(differs.iter().all(|differs| *differs <= MOST), "{name}: {differs:?}");
        assert_eq!(engine.pages().free_blocks(), engine.pages().blocks());
    }
    let name = "granite-hybrid-mini";
    // On a busy machine fewer come at once, and the last of them may be the one that ends: there is nothing to read behind it.
    let found = (0..5).any(|_| {
        let mut reads_on = Planted { inner: engine(name, 10), fault: Fault::ReadsOn };
        let differs = behind_ended_turns(name, &mut reads_on);
        differs.iter().all(|differs| *differs > 10.0 * MOST)
    });
    assert!(found);
}

#[test]
fn a_turn_comes_back_from_the_host() {
    let name = "kimi-linear-mini";
    let mut fresh = Fresh(engine(name, 1));
    let mut engine = engine(name, 3);
    let mut scheduler = Scheduler::new(&mut *engine, BUDGET).with_prefix_cache(1);
    scheduler.set_swap_space(1 << 30).unwrap();
    let prompts: Vec<Vec<u32>> = (50..54).map(|seed| tokens(seed, 70)).collect();
    let first: Vec<Answer> =
        prompts.iter().map(|prompt| answer(&mut scheduler, turn(prompt, 4))).collect();
    for (at, (prompt, first)) in prompts.iter().zip(&first).enumerate() {
        let second = next(prompt, first, &tokens(60, 6));
        let answered = answer(&mut scheduler, request(&second, 0));
        assert_eq!((answered.reused, answered.from_host), (73, at < 3), "{at}");
        assert!(fresh.differs(&second, &answered) <= MOST);
    }
}

#[test]
fn a_wrong_state_behind_a_turn_is_seen() {
    let name = "granite-hybrid-mini";
    for fault in [Fault::OtherState, Fault::Padding] {
        let mut fresh = Fresh(engine(name, 1));
        let mut engine = Planted { inner: engine(name, 4), fault };
        let mut scheduler = Scheduler::new(&mut engine, BUDGET).with_prefix_cache(2);
        let prompt = tokens(1, 50);
        let first = answer(&mut scheduler, turn(&prompt, 2));
        assert!(fresh.differs(&prompt, &first) <= MOST);
        let second = next(&prompt, &first, &[8]);
        let answered = answer(&mut scheduler, request(&second, 0));
        assert_eq!(answered.reused, 51);
        assert!(fresh.differs(&second, &answered) > 100.0 * MOST, "{fault:?}");
    }
}
