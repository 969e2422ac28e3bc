//! Snapshots at the end of turns: the next message starts from them and is answered as if everything had been
//! prefilled.

use crate::prefixes::{
    Answer, BUDGET, Fault, Fresh, MAX_DIFFERENCE, Planted, answers, engine, request,
};
use crate::subject::tokens;
use models::{Engine, LogitsOf, Request, Scheduler, StepBudget};

/// The tokens after an answer, as a template would add them.
const BETWEEN: [u32; 3] = [7, 11, 13];

fn turn(prompt: &[u32], limit: usize) -> Request {
    Request { limit, turn: true, ..request(prompt, 0) }
}

fn answer(scheduler: &mut Scheduler<'_>, request: Request) -> Answer {
    answers(scheduler, vec![request]).remove(0)
}

/// A conversation so far, with a next message.
fn next(prompt: &[u32], answer: &Answer, message: &[u32]) -> Vec<u32> {
    [prompt, &answer.tokens, &BETWEEN, message].concat()
}

fn conversations(name: &str) {
    let mut fresh = Fresh(engine(name, 1));
    let mut engine = engine(name, 6);
    let mut scheduler = Scheduler::new(&mut *engine, BUDGET).with_prefix_cache(3);
    let mut seed = 100;
    // Turns that end before, at and after block boundaries. The second token of an answer of 2 tokens is never read.
    for length in [1, 61, 62, 63, 64, 126, 127, 190] {
        seed += 10;
        let mut prompt = tokens(seed, length);
        let mut exact = 0;
        for (turns, message) in [1, 5, 64, 3].into_iter().enumerate() {
            let answered = answer(&mut scheduler, turn(&prompt, 2));
            let differs = fresh.differs(&prompt, &answered);
            assert!(differs <= MAX_DIFFERENCE, "{name}: {length}, turn {turns}: {differs}");
            // Or further, if another one left a snapshot at a block boundary.
            assert!(answered.reused >= exact, "{name}: {length}, turn {turns}: {answered:?}");
            // Two others continue it from another place, and an unrelated one comes between.
            exact = prompt.len() + 1;
            let following = next(&prompt, &answered, &tokens(seed + 1 + turns as u32, message));
            for other in [5, 6] {
                let beside = next(&prompt, &answered, &tokens(other, 9));
                let answered = answer(&mut scheduler, request(&beside, 0));
                assert!(answered.reused == exact || (other == 6 && answered.reused > exact));
                assert!(fresh.differs(&beside, &answered) <= MAX_DIFFERENCE);
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
fn granite_continues_exactly_at_the_end_of_a_turn() {
    conversations("granite-hybrid-mini");
}

#[test]
fn kimi_continues_exactly_at_the_end_of_a_turn() {
    conversations("kimi-linear-mini");
}

#[test]
fn stop_token_is_not_read() {
    let mut engine = engine("granite-hybrid-mini", 6);
    let mut scheduler = Scheduler::new(&mut *engine, BUDGET).with_prefix_cache(3);
    let prompt = tokens(30, 50);
    let free = answer(&mut scheduler, request(&prompt, 0)).tokens;
    let stopped = Request { stop_ids: vec![free[1]], ..turn(&prompt, 9) };
    let answered = answer(&mut scheduler, stopped);
    assert_eq!(answered.tokens, free[..1]);
    let second = next(&prompt, &answered, &[9]);
    assert_eq!(answer(&mut scheduler, request(&second, 0)).reused, 51);
    // A cancelled request, and one that is not a turn, leave no snapshot.
    let id = scheduler.submit(turn(&tokens(31, 40), 9)).unwrap();
    (0..3).for_each(|_| drop(scheduler.step().unwrap()));
    assert!(scheduler.cancel(id));
    answer(&mut scheduler, request(&tokens(32, 40), 0));
    assert_eq!(scheduler.usage().snapshots, 1);
}

/// A token that did not occur before, in the middle of a run: two tokens come by steps, then eight together.
fn within(tokens: &[u32]) -> usize {
    let new = |at: &usize| !tokens[..*at].contains(&tokens[*at]);
    (3..tokens.len()).filter(new).find(|at| (at - 2) % 8 != 7).expect("a new token within a burst")
}

/// The distance of answers that follow turns ended by stop tokens.
fn compare_continued_turns(name: &str, engine: &mut dyn Engine) -> [f32; 2] {
    let mut fresh = Fresh(crate::prefixes::engine(name, 1));
    let budget = StepBudget { decode_steps_in_flight: 8, ..BUDGET };
    let mut scheduler = Scheduler::new(engine, budget).with_prefix_cache(7);
    // Two together, which end at different positions.
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
    // Before anything else could run.
    let asked = following.iter().map(|following| request(following, 0)).collect();
    let answered = answers(&mut scheduler, asked);
    [0, 1].map(|at| {
        assert_eq!(answered[at].reused, prompts[at].len() + last[at], "{name}");
        fresh.differs(&following[at], &answered[at])
    })
}

#[test]
fn turn_ended_in_a_run_of_tokens_is_snapshotted_at_its_end() {
    for name in ["granite-hybrid-mini", "kimi-linear-mini"] {
        let mut engine = engine(name, 10);
        let differs = compare_continued_turns(name, &mut *engine);
        assert!(differs.iter().all(|differs| *differs <= MAX_DIFFERENCE), "{name}: {differs:?}");
        assert_eq!(engine.pages().free_blocks(), engine.pages().blocks());
    }
    let name = "granite-hybrid-mini";
    // On a busy machine fewer come together, and the last of them may be the one that ends the sequence: then nothing
    // is read after it.
    let found = (0..5).any(|_| {
        let mut reads_on = Planted { inner: engine(name, 10), fault: Fault::ReadsOn };
        let differs = compare_continued_turns(name, &mut reads_on);
        differs.iter().all(|differs| *differs > 10.0 * MAX_DIFFERENCE)
    });
    assert!(found);
}

#[test]
fn turn_is_restored_from_the_host() {
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
        assert!(fresh.differs(&second, &answered) <= MAX_DIFFERENCE);
    }
}

#[test]
fn wrong_state_after_a_turn_changes_the_answer() {
    let name = "granite-hybrid-mini";
    for fault in [Fault::OtherState, Fault::Padding] {
        let mut fresh = Fresh(engine(name, 1));
        let mut engine = Planted { inner: engine(name, 4), fault };
        let mut scheduler = Scheduler::new(&mut engine, BUDGET).with_prefix_cache(2);
        let prompt = tokens(1, 50);
        let first = answer(&mut scheduler, turn(&prompt, 2));
        assert!(fresh.differs(&prompt, &first) <= MAX_DIFFERENCE);
        let second = next(&prompt, &first, &[8]);
        let answered = answer(&mut scheduler, request(&second, 0));
        assert_eq!(answered.reused, 51);
        assert!(fresh.differs(&second, &answered) > 100.0 * MAX_DIFFERENCE, "{fault:?}");
    }
}
