//! Generation by the engine's own steps: tokens do not depend on chunks or on other sequences.

use crate::subject::{Subject, tokens};
use models::{
    FinishReason, GeneratedSequence, GeneratedToken, GenerationControl, LogitsOf, Request,
    Sampling, StepBudget, generate,
};
use std::time::Duration;

fn request(prompt: Vec<u32>, limit: usize, seed: u64) -> Request {
    // Sampled, not greedy: with a tied random embedding the largest logit is always that of the last token.
    let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
    Request {
        prompt,
        limit,
        sampling,
        stop_ids: Vec::new(),
        keep: false,
        shared: 0,
        turn: false,
        bypass_cache: false,
        logits: LogitsOf::Ends,
    }
}

fn run(subject: &Subject, requests: &[Request], chunk: usize) -> Vec<GeneratedSequence> {
    let mut heard = vec![Vec::new(); requests.len()];
    let mut engine = subject.engine(requests.len());
    let listen = |chosen: GeneratedToken<'_>| {
        heard[chosen.request].push(chosen.token);
        GenerationControl::More
    };
    let budget = StepBudget {
        tokens: chunk,
        max_mixed_tokens: chunk,
        max_mixed_step: Duration::MAX,
        decode_steps_in_flight: 1,
    };
    let generated = generate(&mut *engine, requests, budget, listen).unwrap();
    for (index, generated) in generated.iter().enumerate() {
        assert_eq!(generated.tokens, heard[index], "{}", subject.name);
        assert_eq!(engine.len(index), 0, "the place is free again");
    }
    generated
}

#[test]
fn tokens_do_not_depend_on_batch_or_chunks() {
    for name in ["granite-moe-mini", "kimi-linear-mini"] {
        let subject = Subject::draw((name, &[]));
        let requests = [(1, 8), (70, 5), (5, 0), (33, 9)]
            .map(|(prompt, limit)| request(tokens(5, prompt), limit, 11));
        let together = run(&subject, &requests, 16);
        for (request, together) in requests.iter().zip(&together) {
            assert_eq!(together.ended, FinishReason::Limit);
            assert_eq!(together.tokens.len(), request.limit);
            let alone = run(&subject, std::slice::from_ref(request), 1000);
            assert_eq!(alone[0], *together, "{name}, a prompt of {}", request.prompt.len());
        }
        // Another seed gives other tokens, so equality above is not an accident.
        assert_ne!(
            run(&subject, &[request(tokens(5, 33), 9, 12)], 16)[0].tokens,
            together[3].tokens
        );
    }
}

#[test]
fn stop_ids_and_listeners_end_sequences() {
    let subject = Subject::draw(("granite-hybrid-mini", &[]));
    let plain = request(tokens(6, 4), 6, 3);
    let tokens = run(&subject, std::slice::from_ref(&plain), 8).remove(0).tokens;
    let first = tokens.iter().position(|token| *token == tokens[3]).unwrap();
    let stopped = Request { stop_ids: vec![tokens[3]], ..plain.clone() };
    let got = run(&subject, &[stopped], 8).remove(0);
    assert_eq!(
        got,
        GeneratedSequence { tokens: tokens[..first].to_vec(), ended: FinishReason::StopId }
    );

    let mut engine = subject.engine(1);
    let budget = StepBudget {
        tokens: 8,
        max_mixed_tokens: 8,
        max_mixed_step: Duration::MAX,
        decode_steps_in_flight: 4,
    };
    let got =
        generate(&mut *engine, std::slice::from_ref(&plain), budget, |_| GenerationControl::End);
    let got = got.unwrap().remove(0);
    assert_eq!(
        got,
        GeneratedSequence { tokens: tokens[..1].to_vec(), ended: FinishReason::Listener }
    );

    for (request, words) in [
        (Request { prompt: Vec::new(), ..plain.clone() }, "the prompt has no tokens"),
        (
            Request { sampling: Sampling { top_p: 2.0, ..Sampling::default() }, ..plain },
            "top-p is 2, expected a number above 0, at most 1",
        ),
    ] {
        let error =
            generate(&mut *engine, &[request], budget, |_| GenerationControl::More).unwrap_err();
        assert_eq!(error.to_string(), words);
    }
}

#[test]
fn device_decoding_matches_step_by_step_decoding() {
    // With an untied head the most likely token differs from the last one.
    let subject = Subject::draw(("kimi-linear-mini", &[]));
    let request = |seed, prompt, limit| Request {
        sampling: Sampling::default(),
        ..request(tokens(seed, prompt), limit, 0)
    };
    let mut engine = subject.engine(2);
    let mut ahead_of = |requests: &[Request], ahead: usize, most: usize| {
        let mut alone = vec![Vec::new(); requests.len()];
        let budget = StepBudget {
            tokens: 16,
            max_mixed_tokens: 16,
            max_mixed_step: Duration::MAX,
            decode_steps_in_flight: ahead,
        };
        let generated = generate(&mut *engine, requests, budget, |chosen| {
            let heard = &mut alone[chosen.request];
            heard.push(chosen.logits.is_none());
            if heard.len() == most { GenerationControl::End } else { GenerationControl::More }
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
    // In the middle of a run of chosen tokens: ended by a listener, and by a stop token that did not occur before.
    let (got, _) = ahead_of(&two, 5, 5);
    assert!(got.iter().all(|got| got.tokens.len() == 5 && got.ended == FinishReason::Listener));
    let all = &want[0].tokens;
    let at = (4..all.len()).find(|at| !all[..*at].contains(&all[*at]) && (at - 2) % 5 != 0);
    let at = at.expect("a new token within a burst");
    let stopping = Request { stop_ids: vec![all[at]], ..two[0].clone() };
    let (got, _) = ahead_of(&[stopping], 5, usize::MAX);
    assert_eq!(
        got[0],
        GeneratedSequence { tokens: all[..at].to_vec(), ended: FinishReason::StopId }
    );
    // Sampled and penalized tokens are the same too.
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
