//! Many sequences at once give the same logits as each alone.

use crate::subject::{Subject, VOCABULARY, check, tokens};
use models::{Batch, LogitsSelection};

/// Sequences by slot, with the number of tokens that each step advances them by.
const STEPS: &[&[(usize, usize)]] = &[
    &[(3, 1), (0, 64), (2, 5)],
    &[(0, 1), (1, 130), (3, 1)],
    &[(2, 60), (1, 1), (0, 1), (3, 70)],
    &[(0, 1), (1, 1), (2, 1), (3, 1)],
    &[(1, 1)],
];

#[test]
fn sequences_of_unequal_lengths_are_independent() {
    for subject in Subject::all() {
        let oracle = subject.oracle();
        let prompts: Vec<Vec<u32>> = (0..4).map(|place| tokens(10 + place, 140)).collect();
        let wants: Vec<Vec<f64>> = prompts.iter().map(|tokens| oracle.logits(tokens)).collect();
        let mut engine = subject.engine(4);
        for round in 0..2 {
            let mut done = [0; 4];
            for (index, step) in STEPS.iter().enumerate() {
                let mut batch = Batch::new();
                let mut want = Vec::new();
                for (place, count) in *step {
                    let range = done[*place]..done[*place] + count;
                    batch = batch.with(*place, &prompts[*place][range.clone()]);
                    want.extend(&wants[*place][range.start * VOCABULARY..range.end * VOCABULARY]);
                    done[*place] = range.end;
                }
                let got = engine.step(&batch, LogitsSelection::Every).unwrap();
                check(&format!("{} round {round} step {index}", subject.name), &got, &want);
            }
            for (place, done) in done.into_iter().enumerate() {
                assert_eq!(engine.len(place), done);
                // A reused slot is independent of its former sequence.
                engine.reset(place);
            }
        }
    }
}

#[test]
fn the_last_tokens_logits_are_those_of_every_token() {
    for subject in Subject::all() {
        let (a, b) = (tokens(20, 30), tokens(21, 7));
        let batch = Batch::new().with(1, &a).with(0, &b);
        let every = subject.engine(2).step(&batch, LogitsSelection::Every).unwrap();
        let last = subject.engine(2).step(&batch, LogitsSelection::Last).unwrap();
        let ends = [29, 36].map(|token| &every[token * VOCABULARY..(token + 1) * VOCABULARY]);
        assert_eq!(last, ends.concat(), "{}", subject.name);
    }
}

#[test]
fn invalid_batches_are_refused_without_effect() {
    let subject = Subject::draw(("granite-hybrid-mini", &[]));
    let mut engine = subject.engine(2);
    for (batch, words) in [
        (Batch::new(), "there are no tokens"),
        (Batch::new().with(2, &[1]), "there is no slot 2, the engine has 2"),
        (Batch::new().with(0, &[]), "sequence 0 has no tokens"),
        (Batch::new().with(0, &[1]).with(0, &[2]), "sequence 0 is in the batch twice"),
        (Batch::new().with(0, &[3, 512]), "token 512 is beyond the model's vocabulary of 512"),
        (
            Batch::new().with(0, &tokens(1, 700)),
            "the cache has 640 of 640 tokens free, this step wants 704 more",
        ),
    ] {
        assert_eq!(engine.step(&batch, LogitsSelection::Last).unwrap_err().to_string(), words);
        assert_eq!(engine.len(0), 0);
    }
}
