//! Generation by the engine's own steps: what is chosen does not depend on chunks or on who else runs.

use crate::subject::{Subject, tokens};
use models::{Chosen, Ended, Generated, Next, Request, Sampling, generate};

fn request(prompt: Vec<u32>, limit: usize, seed: u64) -> Request {
    // Drawn, not taken: with a tied random embedding the largest logit is always the last token's own.
    let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
    Request { prompt, limit, sampling, stop_ids: Vec::new() }
}

fn run(subject: &Subject, requests: &[Request], chunk: usize) -> Vec<Generated> {
    let mut heard = vec![Vec::new(); requests.len()];
    let mut engine = subject.engine(requests.len());
    let listen = |chosen: Chosen<'_>| {
        heard[chosen.request].push(chosen.token);
        Next::More
    };
    let generated = generate(&mut *engine, requests, chunk, listen).unwrap();
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
    let got =
        generate(&mut *engine, std::slice::from_ref(&plain), 8, |_| Next::End).unwrap().remove(0);
    assert_eq!(got, Generated { tokens: tokens[..1].to_vec(), ended: Ended::Listener });

    for (request, words) in [
        (Request { prompt: Vec::new(), ..plain.clone() }, "prompt 0 has no tokens"),
        (
            Request { sampling: Sampling { top_p: 2.0, ..Sampling::default() }, ..plain },
            "top-p is 2, wanted a number above 0, at most 1",
        ),
    ] {
        let error = generate(&mut *engine, &[request], 8, |_| Next::More).unwrap_err();
        assert_eq!(error.to_string(), words);
    }
}
