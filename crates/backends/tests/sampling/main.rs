//! Every variant of sampling against the float64 definition, frequencies of draws against probabilities, and calls it must refuse.
#![allow(clippy::unwrap_used)] // Helpers of tests panic as tests do.

#[path = "../scan_support/mod.rs"]
mod scan_support;

use ops::sampling::{IN_PROMPT, NONE, SamplingOp};
use ops::{Op, Settings, Tensor, TensorMap};
use scan_support::{Random, ints, launch_all};

/// One row's controls.
#[derive(Clone, Copy)]
struct Controls {
    temperature: f32,
    top_p: f32,
    min_p: f32,
    penalties: [f32; 3],
    top_k: i32,
}

const WARM: Controls =
    Controls { temperature: 1.0, top_p: 1.0, min_p: 0.0, penalties: [1.0, 0.0, 0.0], top_k: 0 };

/// Rows of the same logits with different seeds.
fn call(logits: &[f32], rows: usize, controls: Controls) -> TensorMap {
    let Controls {
        temperature, top_p, min_p, penalties: [repetition, presence, frequency], ..
    } = controls;
    let of_row = [temperature, top_p, min_p, repetition, presence, frequency];
    let seeds: Vec<i32> = (0..rows as i32).flat_map(|row| [row, -row]).collect();
    [
        ("logits", Tensor::new(&[rows, logits.len()], logits.repeat(rows))),
        ("controls", Tensor::new(&[rows, 6], of_row.repeat(rows))),
        ("top_k", ints(&vec![controls.top_k; rows])),
        ("seed", Tensor::new(&[rows, 2], seeds)),
        ("draw", ints(&vec![7; rows])),
    ]
    .map(|(name, tensor)| (name.to_owned(), tensor))
    .into()
}

/// The tokens of every variant, each checked against the reference; all variants choose the same tokens.
fn tokens(inputs: &TensorMap) -> Vec<i32> {
    let call = SamplingOp.bind(inputs, &Settings::new()).unwrap();
    let mut first: Option<Vec<i32>> = None;
    for (variant, outputs) in launch_all(&SamplingOp, inputs, &Settings::new()) {
        call.reference_for(&outputs).unwrap_or_else(|wrong| panic!("{variant}: {wrong}"));
        let tokens = outputs["token"].view::<i32>().unwrap().to_vec();
        assert_eq!(*first.get_or_insert_with(|| tokens.clone()), tokens, "{variant}");
    }
    first.unwrap()
}

const LOGITS: [f32; 6] = [0.5, 2.0, -1.0, 2.0, 1.0, -3.0];

/// Compares the frequency of each token with unnormalised weights; 0 means never.
fn check(controls: Controls, counts: Option<[i32; 6]>, weights: [f64; 6]) {
    const DRAWS: usize = 20_000;
    let mut inputs = call(&LOGITS, DRAWS, controls);
    if let Some(counts) = counts {
        inputs.insert("counts".to_owned(), Tensor::new(&[1, 6], counts.to_vec()));
        inputs.insert("slots".to_owned(), ints(&vec![0; DRAWS]));
    }
    let sum: f64 = weights.iter().sum();
    let tokens = tokens(&inputs);
    for (token, weight) in weights.iter().enumerate() {
        let got = tokens.iter().filter(|drawn| **drawn == token as i32).count();
        let (got, want) = (got as f64 / DRAWS as f64, weight / sum);
        // Four deviations of a binomial distribution.
        let slack = 4.0 * (want * (1.0 - want) / DRAWS as f64).sqrt();
        assert!((got - want).abs() <= slack, "token {token}: {got}, wanted {want}");
    }
}

#[test]
fn draws_follow_the_filtered_probabilities() {
    let e = |x: f64| x.exp();
    let all = [e(0.5), e(2.0), e(-1.0), e(2.0), e(1.0), e(-3.0)];
    check(WARM, None, all);
    check(Controls { temperature: 2.0, ..WARM }, None, all.map(f64::sqrt));
    let three = [0.0, e(2.0), 0.0, e(2.0), e(1.0), 0.0];
    check(Controls { top_k: 3, ..WARM }, None, three);
    check(Controls { top_k: 1, ..WARM }, None, [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    // The two most probable tokens sum to 0.78, and the third reaches 0.8.
    check(Controls { top_p: 0.8, ..WARM }, None, three);
    check(Controls { top_p: 0.01, ..WARM }, None, [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    // Among the three most probable tokens, the first two have probability 0.845.
    let both = Controls { top_k: 3, top_p: 0.84, ..WARM };
    check(both, None, [0.0, e(2.0), 0.0, e(2.0), 0.0, 0.0]);
    // e^(1-2) = 0.37 is kept, e^(0.5-2) = 0.22 is removed.
    check(Controls { min_p: 0.3, ..WARM }, None, three);
    let penal = |penalties| Controls { penalties, ..WARM };
    let counts = Some([0, IN_PROMPT, 1, 0, 0, 0]);
    let halved = [e(0.5), e(1.0), e(-2.0), e(2.0), e(1.0), e(-3.0)];
    check(penal([2.0, 0.0, 0.0]), counts, halved);
    // Presence and frequency penalties ignore tokens that only the prompt contains.
    let there = [e(0.5), e(2.0), e(-2.5), e(2.0), e(1.0), e(-3.0)];
    check(penal([1.0, 1.5, 0.0]), counts, there);
    let often = [e(0.5), e(2.0), e(-1.0), e(0.5), e(1.0), e(-3.0)];
    check(penal([1.0, 0.0, 0.5]), Some([0, IN_PROMPT, 0, IN_PROMPT | 3, 0, 0]), often);
}

#[test]
fn filters_hold_for_a_large_vocabulary_and_any_logits() {
    let mut random = Random(9);
    for (spread, whole) in [(1.0, false), (12.0, false), (3.0, true), (0.0, true)] {
        let mut logit = || {
            let x = (random.uniform(-1.0, 1.0) + random.uniform(-1.0, 1.0)) * spread;
            (if whole { x.round() } else { x }) as f32
        };
        let logits: Vec<f32> = (0..30_011).map(|_| logit()).collect();
        for temperature in [0.0, 1e-3, 0.7, 5.0] {
            for top_p in [0.05, 0.9, 1.0] {
                for top_k in [0, 1, 50, 20_000] {
                    let controls = Controls { temperature, top_p, top_k, ..WARM };
                    drop(tokens(&call(&logits, 2, controls)));
                }
            }
        }
    }
}

#[test]
fn rows_without_a_valid_token_return_minus_one() {
    for temperature in [0.0, 1.0] {
        let controls = Controls { temperature, ..WARM };
        let nothing = vec![f32::NEG_INFINITY; 40];
        assert_eq!(tokens(&call(&nothing, 2, controls)), [NONE; 2]);
        let mut one = nothing.clone();
        one[33] = -5.0;
        assert_eq!(tokens(&call(&one, 2, controls)), [33; 2]);
        let mut masked = call(&one, 2, controls);
        masked.insert("mask".to_owned(), Tensor::new(&[2, 2], vec![-1, 0, -1, -1]));
        assert_eq!(tokens(&masked), [NONE, 33]);
        let mut infinite = vec![0.0f32; 40];
        infinite[5] = f32::INFINITY;
        assert_eq!(tokens(&call(&infinite, 1, controls)), [NONE]);
    }
}

#[test]
fn a_nan_logit_invalidates_only_its_row() {
    // `Op::bind` refuses NaN, but models call this op with NaN when their layers overflow.
    use ops::Typed;
    use ops::sampling::{SamplingCall, SamplingOptions};
    let mut logits = LOGITS.repeat(3);
    logits[8] = f32::NAN;
    let inputs = call(&LOGITS, 3, WARM);
    let logits = Tensor::new(&[3, 6], logits);
    let call = SamplingCall {
        logits: &logits,
        controls: &inputs["controls"],
        top_k: &inputs["top_k"],
        seed: &inputs["seed"],
        draw: &inputs["draw"],
        mask: None,
        counts: None,
        slots: None,
        options: SamplingOptions::default(),
        token: None,
        logprob: None,
        top_tokens: None,
        top_logprobs: None,
    };
    let mut outputs = TensorMap::new();
    call.run(&scan_support::cpu(), &mut outputs).unwrap();
    let tokens = outputs["token"].view::<i32>().unwrap();
    assert_eq!((tokens[0] == NONE, tokens[1], tokens[2] == NONE), (false, NONE, false));
}

#[test]
fn log_probabilities_are_those_of_the_logits_as_given() {
    let mut inputs = call(&LOGITS, 1, Controls { temperature: 0.0, top_k: 2, ..WARM });
    inputs.insert("counts".to_owned(), Tensor::new(&[1, 6], vec![0, 0, 0, 0, 0, 9]));
    let settings = Settings::new().with("top_logprobs", 4);
    let sum = LOGITS.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln();
    for (variant, outputs) in launch_all(&SamplingOp, &inputs, &settings) {
        assert_eq!(outputs["top_tokens"].view::<i32>().unwrap(), [1, 3, 4, 0], "{variant}");
        let own = outputs["logprob"].to_f64();
        let all = [own, outputs["top_logprobs"].to_f64()].concat();
        let want = [2.0, 2.0, 2.0, 1.0, 0.5].map(|x| x - sum);
        assert!(all.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-6), "{all:?}");
    }
}

#[test]
fn invalid_calls_name_the_tensor_or_setting() {
    let refuse = |change: &dyn Fn(&mut TensorMap), settings: Settings, words: &str| {
        let mut inputs = call(&LOGITS, 2, WARM);
        change(&mut inputs);
        let error = SamplingOp.bind(&inputs, &settings).err().unwrap();
        assert_eq!(error.to_string(), words);
    };
    let put = |name: &'static str, tensor: Tensor| {
        move |inputs: &mut TensorMap| drop(inputs.insert(name.to_owned(), tensor.clone()))
    };
    refuse(
        &put("controls", Tensor::new(&[2, 3], vec![0f32; 6])),
        Settings::new(),
        "sampling: tensor `controls` has shape [2, 3], wanted [R=2, numbers=6]",
    );
    refuse(
        &put("mask", Tensor::new(&[2, 2], vec![0i32; 4])),
        Settings::new(),
        "sampling: tensor `mask` has shape [2, 2], wanted [R=2, ceil(V / 32)=1]",
    );
    refuse(
        &put("slots", ints(&[0, 1])),
        Settings::new(),
        "sampling: tensor `slots` names rows of `counts`, which is missing",
    );
    let beyond = |inputs: &mut TensorMap| {
        inputs.insert("counts".to_owned(), Tensor::new(&[3, 6], vec![0i32; 18]));
        inputs.insert("slots".to_owned(), ints(&[0, 3]));
    };
    refuse(
        &beyond,
        Settings::new(),
        "sampling: tensor `slots` names row 3 of `counts`, which has 3",
    );
    refuse(
        &|_| {},
        Settings::new().with("top_logprobs", 7),
        "sampling: setting `top_logprobs` is `7`, wanted at most 6",
    );
}
