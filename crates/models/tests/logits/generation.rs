//! Generation with an engine: tokens depend neither on prompt chunks nor on other sequences, nor on decoding several steps on
//! the device.

use crate::subject::{Subject, tokens};
use models::{
    FinishReason, GeneratedSequence, GeneratedToken, GenerationControl, LogitsOf, Request,
    Sampling, StepBudget, generate,
};
use std::time::Duration;

fn request(prompt: Vec<u32>, limit: usize, seed: u64) -> Request {
    // Sampled, not greedy: with a tied embedding of random weights the largest logit is always that of the previous token.
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
    let mut received = vec![Vec::new(); requests.len()];
    let mut engine = subject.engine(requests.len());
    let listen = |chosen: GeneratedToken<'_>| {
        received[chosen.request].push(chosen.token);
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
        assert_eq!(generated.tokens, received[index], "{}", subject.name);
        assert_eq!(engine.len(index), 0, "the slot was not freed");
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
        // Another seed gives other tokens, so the equality above is not trivial.
        assert_ne!(
            run(&subject, &[request(tokens(5, 33), 9, 12)], 16)[0].tokens,
            together[3].tokens
        );
    }
}

#[test]
fn stop_ids_and_callbacks_end_sequences() {
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
        GeneratedSequence { tokens: tokens[..1].to_vec(), ended: FinishReason::Caller }
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
    // With an untied head the most likely token is not always the previous one.
    let subject = Subject::draw(("kimi-linear-mini", &[]));
    let request = |seed, prompt, limit| Request {
        sampling: Sampling::default(),
        ..request(tokens(seed, prompt), limit, 0)
    };
    let mut engine = subject.engine(2);
    let mut decode = |requests: &[Request], in_flight: usize, most: usize| {
        let mut without_logits = vec![Vec::new(); requests.len()];
        let budget = StepBudget {
            tokens: 16,
            max_mixed_tokens: 16,
            max_mixed_step: Duration::MAX,
            decode_steps_in_flight: in_flight,
        };
        let generated = generate(&mut *engine, requests, budget, |chosen| {
            let flags = &mut without_logits[chosen.request];
            flags.push(chosen.logits.is_none());
            if flags.len() == most { GenerationControl::End } else { GenerationControl::More }
        });
        assert_eq!((engine.len(0), engine.len(1)), (0, 0), "a slot was not freed");
        (generated.unwrap(), without_logits)
    };
    let two = [request(5, 20, 23), request(6, 3, 17)];
    let with_logits = two.clone().map(|of| Request { logits: LogitsOf::All, ..of });
    let (want, without_logits) = decode(&with_logits, 5, usize::MAX);
    assert!(without_logits.concat().iter().all(|without_logits| !without_logits));
    assert_eq!(decode(&two, 1, usize::MAX).0, want);
    assert!(want[0].tokens.windows(2).any(|pair| pair[0] != pair[1]), "{want:?}");
    let (got, without_logits) = decode(&two, 5, usize::MAX);
    assert_eq!(got, want);
    for (without_logits, limit) in without_logits.iter().zip([23, 17]) {
        let first = without_logits.iter().position(|without_logits| *without_logits);
        assert!(first >= Some(2), "the first two tokens have logits: {without_logits:?}");
        assert_eq!(
            (without_logits.len(), without_logits.last()),
            (limit, Some(&false)),
            "the last token has logits"
        );
    }
    // Sequences that end while steps are in flight: by the callback, and by a stop token that did not occur before.
    let (got, _) = decode(&two, 5, 5);
    assert!(got.iter().all(|got| got.tokens.len() == 5 && got.ended == FinishReason::Caller));
    let all = &want[0].tokens;
    let at = (4..all.len()).find(|at| !all[..*at].contains(&all[*at]) && (at - 2) % 5 != 0);
    let at = at.expect("a new token within a burst");
    let stopping = Request { stop_ids: vec![all[at]], ..two[0].clone() };
    let (got, _) = decode(&[stopping], 5, usize::MAX);
    assert_eq!(
        got[0],
        GeneratedSequence { tokens: all[..at].to_vec(), ended: FinishReason::StopId }
    );
    // Sampled and penalized tokens are the same too.
    let sampled = Sampling { temperature: 1.0, top_p: 0.9, seed: 7, ..Sampling::default() };
    let penalised = Sampling { repetition_penalty: 1.5, ..Sampling::default() };
    let both = Sampling { frequency_penalty: 0.7, presence_penalty: 0.5, ..sampled.clone() };
    let mut all = vec![want[1].tokens.clone()];
    for sampling in [sampled, penalised, both] {
        let request = Request { sampling, logits: LogitsOf::None, ..two[1].clone() };
        let (want, _) = decode(std::slice::from_ref(&request), 1, usize::MAX);
        let (got, without_logits) = decode(&[request], 5, usize::MAX);
        assert_eq!(got, want);
        assert!(
            without_logits[0].iter().all(|without_logits| *without_logits),
            "a token has logits"
        );
        assert!(!all.contains(&want[0].tokens), "penalties and sampling must change the tokens");
        all.push(want[0].tokens.clone());
    }
}
