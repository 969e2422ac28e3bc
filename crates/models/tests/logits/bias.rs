//! Logit biases are added before penalties and masks on every device, and are not in the returned logits.

use crate::subject::{Subject, tokens};
use device::Device;
use facts::BackendKind;
use models::{
    Batch, Choice, Engine, GenerationControl, LogitsOf, LogitsSelection, Request, Sampling,
    StepBudget, engine_kind, generate,
};
use std::time::Duration;

/// Every device of this machine with an engine, with a random model on each.
fn engines() -> impl Iterator<Item = Box<dyn Engine>> {
    let subject = Subject::draw(("granite-hybrid-mini", &[("tie_word_embeddings", "false")]));
    let devices = [BackendKind::Cpu, BackendKind::Cuda].map(backends::open).into_iter().flatten();
    devices.map(move |device: Device| {
        let storage = engine_kind(&device).unwrap().storages[0];
        subject.engine_on(device, storage, 2)
    })
}

/// The first of the largest logits.
fn largest(logits: impl Iterator<Item = f32>) -> u32 {
    let best = (0..).zip(logits).fold((0, f32::MIN), |a, b| if b.1 > a.1 { b } else { a });
    best.0
}

/// The tokens that two sequences of one prompt choose, the first with `biased`, and the logits of the first.
fn choose(
    engine: &mut dyn Engine,
    prompt: &[u32],
    biased: Choice<'_>,
    plain: Choice<'_>,
) -> ([u32; 2], Vec<f32>) {
    let batch = Batch::new().with(0, prompt).with(1, prompt);
    let drawn = engine.choose(&batch, &[Some(biased), Some(plain)], 1).unwrap();
    (0..2).for_each(|slot| engine.reset(slot));
    let logits = drawn[0].logits.clone().unwrap();
    ([0, 1].map(|row| drawn[row].tokens[0].unwrap()), logits)
}

#[test]
fn bias_selects_the_token_and_is_not_in_the_logits() {
    let prompt = tokens(3, 20);
    for mut engine in engines() {
        let given = engine.step(&Batch::new().with(0, &prompt), LogitsSelection::Last).unwrap();
        engine.reset(0);
        let best = largest(given.iter().copied());
        let but_best = (0..).zip(&given).map(|(id, x)| if id == best { f32::MIN } else { *x });
        let second = largest(but_best);
        let gap = given[best as usize] - given[second as usize];
        let plain = Sampling::default();
        for (bias, expect) in [(gap * 0.9, best), (gap * 1.1, second), (100.0, second)] {
            let sampling = Sampling { logit_bias: vec![(second, bias)], ..plain.clone() };
            let biased = Choice { logits: true, ..Choice::by(&sampling) };
            let (chosen, logits) = choose(&mut *engine, &prompt, biased, Choice::by(&plain));
            assert_eq!(chosen, [expect, best], "{:?}, bias {bias}", engine.device());
            let near = logits.iter().zip(&given).all(|(a, b)| (a - b).abs() < 1e-2);
            assert!(near, "the logits are those of the model");
        }
        // Among the tokens that a mask allows, the biased one.
        let (one, other) = (best ^ 1, best ^ 2);
        let mut mask = vec![0u32; given.len().div_ceil(32)];
        for id in [one, other] {
            mask[id as usize / 32] |= 1 << (id % 32);
        }
        for expect in [one, other] {
            let sampling =
                Sampling { logit_bias: vec![(best, 100.0), (expect, 90.0)], ..plain.clone() };
            let biased = Choice { mask: Some(&mask), logits: true, ..Choice::by(&sampling) };
            let (chosen, _) = choose(&mut *engine, &prompt, biased, Choice::by(&plain));
            assert_eq!(chosen, [expect, best]);
        }
    }
}

#[test]
fn penalties_apply_to_biased_logits() {
    let prompt = tokens(3, 20);
    for mut engine in engines() {
        let given = engine.step(&Batch::new().with(0, &prompt), LogitsSelection::Last).unwrap();
        engine.reset(0);
        let penalised = |x: f32| if x > 0.0 { x / 4.0 } else { x * 4.0 };
        let by = |bias_first: bool, token: u32, bias: f32| {
            largest((0..).zip(&given).map(|(id, x)| {
                let bias = if id == token { bias } else { 0.0 };
                match (prompt.contains(&id), bias_first) {
                    (true, true) => penalised(x + bias),
                    (true, false) => penalised(*x) + bias,
                    (false, _) => x + bias,
                }
            }))
        };
        // A case in which the order of bias and penalty matters.
        let biases = (1..200).map(|step| step as f32 * 0.1);
        let cases = prompt.iter().flat_map(|token| biases.clone().map(|bias| (*token, bias)));
        let differ = |(token, bias): &(u32, f32)| {
            let near = [bias - 0.1, bias + 0.1].map(|bias| by(true, *token, bias));
            let expect = by(true, *token, *bias);
            near == [expect; 2] && by(false, *token, *bias) != expect
        };
        let (token, bias) = cases.clone().find(differ).expect("some order that matters");
        let plain = Sampling::default();
        let sampling =
            Sampling { logit_bias: vec![(token, bias)], repetition_penalty: 4.0, ..plain.clone() };
        let biased = Choice { prompt: &prompt, logits: true, ..Choice::by(&sampling) };
        let (chosen, _) = choose(&mut *engine, &prompt, biased, Choice::by(&plain));
        assert_eq!(chosen[0], by(true, token, bias), "{:?}", engine.device());
    }
}

#[test]
fn sequences_with_and_without_a_bias_run_together() {
    let request = |logit_bias| Request {
        prompt: tokens(5, 12),
        limit: 12,
        sampling: Sampling { logit_bias, ..Sampling::default() },
        stop_ids: Vec::new(),
        keep: false,
        shared: 0,
        turn: false,
        bypass_cache: false,
        logits: LogitsOf::None,
    };
    let budget = StepBudget {
        tokens: 64,
        max_mixed_tokens: 64,
        max_mixed_step: Duration::MAX,
        decode_steps_in_flight: 4,
    };
    for mut engine in engines() {
        let mut run = |requests: &[Request]| {
            generate(&mut *engine, requests, budget, |_| GenerationControl::More).unwrap()
        };
        let alone = run(&[request(Vec::new())]);
        let both = run(&[request(vec![(7, 100.0), (8, 99.5)]), request(Vec::new())]);
        assert_eq!(both[0].tokens, [7; 12]);
        assert_eq!(both[1], alone[0]);
        // A bias of an unknown token is refused with its number.
        let error = generate(&mut *engine, &[request(vec![(1 << 20, 1.0)])], budget, |_| {
            GenerationControl::More
        });
        assert!(error.unwrap_err().to_string().contains("token 1048576 is beyond"));
    }
}
