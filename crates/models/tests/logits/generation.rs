//! Generation by the engine's own steps: what is chosen does not depend on chunks or on who else runs.

use crate::subject::{Subject, tokens};
use models::{Chosen, Ended, Generated, LogitsOf, Next, Request, Sampling, StepBudget, generate};
use std::time::Duration;

fn request(prompt: Vec<u32>, limit: usize, seed: u64) -> Request {
    // Drawn, not taken: with a tied random embedding the largest logit is always the last token's own.
    let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
    Request {
        prompt,
        limit,
        sampling,
        stop_ids: Vec::new(),
        keep: false,
        shared: 0,
        turn: false,
        anew: false,
        logits: LogitsOf::Ends,
    }
}

fn run(subject: &Subject, requests: &[Request], chunk: usize) -> Vec<Generated> {
    let mut heard = vec![Vec::new(); requests.len()];
    let mut engine = subject.engine(requests.len());
    let listen = |chosen: Chosen<'_>| {
        heard[chosen.request].push(chosen.token);
        Next::More
    };
    let budget = StepBudget { tokens: chunk, beside: chunk, patience: Duration::MAX, ahead: 1 };
    let generated = generate(&mut *engine, requests, budget, listen).unwrap();
    for (index, generated) in generated.iter().enumerate() {
        assert_eq!(generated.tokens, heard[index], "{}", subject.name);
        assert_eq!(engine.len(index), 0, "the place is free again");
    }
    generated
}

#[test]
fn a_sequence_is_the_same_alone_and_among_others_in_any_chunks() {
    for name in ["granite-moe-mini", "kimi-linear-mini"] {
        let subject = Subject::draw((name, &[]));
        let requests = [(1, 8), (70, 5), (5, 0), (33, 9)]
            .map(|(prompt, limit)| request(tokens(5, prompt), limit, 11));
        let together = run(&subject, &requests, 16);
        for (request, together) in requests.iter().zip(&together) {
            assert_eq!(together.ended, Ended::Limit);
            assert_eq!(together.tokens.len(), request.limit);
            let alone = run(&subject, std::slice::from_ref(request), 1000);
            assert_eq!(alone[0], *together, "{name}, a prompt of {}", request.prompt.len());
        }
        // Another seed draws others, so equality above is no accident.
        assert_ne!(
            run(&subject, &[request(tokens(5, 33), 9, 12)], 16)[0].tokens,
            together[3].tokens
        );
    }
}

#[test]
fn sequences_end_by_a_stop_id_and_by_their_listener() {
    let subject = Subject::draw(("granite-hybrid-mini", &[]));
    let plain = request(tokens(6, 4), 6, 3);
    let tokens = run(&subject, std::slice::from_ref(&plain), 8).remove(0).tokens;
    let first = tokens.iter().position(|token| *token == tokens[3]).unwrap();
    let stopped = Request { stop_ids: vec![tokens[3]], ..plain.clone() };
    let got = run(&subject, &[stopped], 8).remove(0);
    assert_eq!(got, Generated { tokens: tokens[..first].to_vec(), ended: Ended::StopId });

    let mut engine = subject.engine(1);
    let budget = StepBudget { tokens: 8, beside: 8, patience: Duration::MAX, ahead: 4 };
    let got = generate(&mut *engine, std::slice::from_ref(&plain), budget, |_| Next::End);
    let got = got.unwrap().remove(0);
    assert_eq!(got, Generated { tokens: tokens[..1].to_vec(), ended: Ended::Listener });

    for (request, words) in [
        (Request { prompt: Vec::new(), ..plain.clone() }, "the prompt has no tokens"),
        (
            Request { sampling: Sampling { top_p: 2.0, ..Sampling::default() }, ..plain },
            "top-p is 2, wanted a number above 0, at most 1",
        ),
    ] {
        let error = generate(&mut *engine, &[request], budget, |_| Next::More).unwrap_err();
        assert_eq!(error.to_string(), words);
    }
}

#[test]
fn what_a_device_chooses_by_itself_is_what_steps_choose_and_ends_as_they_end() {
    // A head of its own: the likeliest token is not the last one again.
    let subject = Subject::draw(("kimi-linear-mini", &[]));
    let request = |seed, prompt, limit| Request {
        sampling: Sampling::default(),
        ..request(tokens(seed, prompt), limit, 0)
    };
    let mut engine = subject.engine(2);
    let mut ahead_of = |requests: &[Request], ahead: usize, most: usize| {
        let mut alone = vec![Vec::new(); requests.len()];
        let budget = StepBudget { tokens: 16, beside: 16, patience: Duration::MAX, ahead };
        let generated = generate(&mut *engine, requests, budget, |chosen| {
            let heard = &mut alone[chosen.request];
            heard.push(chosen.logits.is_none());
            if heard.len() == most { Next::End } else { Next::More }
        });
        assert_eq!((engine.len(0), engine.len(1)), (0, 0), "the places are free again");
        (generated.unwrap(), alone)
    };
    let two = [request(5, 20, 23), request(6, 3, 17)];
    let with_logits = two.clone().map(|of| Request { logits: LogitsOf::All, ..of });
    let (want, alone) = ahead_of(&with_logits, 5, usize::MAX);
    assert!(alone.concat().iter().all(|alone| !alone));
    assert_eq!(ahead_of(&two, 1, usize::MAX).0, want);
    assert!(want[0].tokens.windows(2).any(|pair| pair[0] != pair[1]), "{want:?}");
    let (got, alone) = ahead_of(&two, 5, usize::MAX);
    assert_eq!(got, want);
    for (alone, limit) in alone.iter().zip([23, 17]) {
        let first = alone.iter().position(|alone| *alone);
        assert!(first >= Some(2), "two tokens come by steps: {alone:?}");
        assert_eq!((alone.len(), alone.last()), (limit, Some(&false)), "and so does the last");
    }
    // In the middle of what is chosen at once: by a listener, and by a token that was not there before.
    let (got, _) = ahead_of(&two, 5, 5);
    assert!(got.iter().all(|got| got.tokens.len() == 5 && got.ended == Ended::Listener));
    let all = &want[0].tokens;
    let at = (4..all.len()).find(|at| !all[..*at].contains(&all[*at]) && (at - 2) % 5 != 0);
    let at = at.expect("a new token within a burst");
    let stopping = Request { stop_ids: vec![all[at]], ..two[0].clone() };
    let (got, _) = ahead_of(&[stopping], 5, usize::MAX);
    assert_eq!(got[0], Generated { tokens: all[..at].to_vec(), ended: Ended::StopId });
    // What is drawn, or penalised, is the same too.
    let drawn = Sampling { temperature: 1.0, top_p: 0.9, seed: 7, ..Sampling::default() };
    let penalised = Sampling { repetition_penalty: 1.5, ..Sampling::default() };
    let both = Sampling { frequency_penalty: 0.7, presence_penalty: 0.5, ..drawn.clone() };
    let mut all = vec![want[1].tokens.clone()];
    for sampling in [drawn, penalised, both] {
        let request = Request { sampling, logits: LogitsOf::None, ..two[1].clone() };
        let (want, _) = ahead_of(std::slice::from_ref(&request), 1, usize::MAX);
        let (got, alone) = ahead_of(&[request], 5, usize::MAX);
        assert_eq!(got, want);
        assert!(alone[0].iter().all(|alone| *alone), "none comes with logits");
        assert!(!all.contains(&want[0].tokens), "penalties and draws change what is chosen");
        all.push(want[0].tokens.clone());
    }
}
