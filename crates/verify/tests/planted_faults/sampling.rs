use crate::{Fault, FaultInput};
use ops::sampling::{CONTROLS, IN_PROMPT};
use ops::{Tensor, TensorMap};

pub(crate) const FAULTS: &[Fault] = &[
    Fault { name: "temperature left out", plant: |given| control(given, 0, |_| 1.0) },
    Fault { name: "temperature multiplied", plant: |given| control(given, 0, |x| 1.0 / x) },
    Fault { name: "top-p left out", plant: |given| control(given, 1, |_| 1.0) },
    Fault { name: "top-p without the token that reaches it", plant: short_of_top_p },
    Fault { name: "min-p left out", plant: |given| control(given, 2, |_| 0.0) },
    Fault { name: "repetition penalty left out", plant: |given| control(given, 3, |_| 1.0) },
    Fault { name: "presence penalty left out", plant: |given| control(given, 4, |_| 0.0) },
    Fault { name: "frequency penalty left out", plant: |given| control(given, 5, |_| 0.0) },
    Fault { name: "penalties for what only the prompt has", plant: prompt_counted },
    Fault { name: "top-k one wider", plant: wider },
    Fault { name: "top-k before ties are broken", plant: no_top_k },
    Fault { name: "mask left out", plant: |given| given.without("mask") },
    Fault { name: "mask read from its highest bit", plant: mask_reversed },
    Fault { name: "another draw's random numbers", plant: |given| next(given, "draw") },
    Fault { name: "another seed's random numbers", plant: |given| next(given, "seed") },
    Fault { name: "counts of the next slot", plant: |given| next(given, "slots") },
    Fault {
        name: "the most likely token whatever was drawn",
        plant: |given| control(given, 0, |_| 0.0),
    },
    Fault { name: "the token after the one that was drawn", plant: one_off },
    Fault { name: "log-probabilities of penalised logits", plant: unnormalised },
    Fault { name: "most likely tokens in the order of their numbers", plant: by_number },
];

/// Another value of one control.
fn control(given: &FaultInput<'_>, which: usize, change: fn(f64) -> f64) -> Option<TensorMap> {
    given.with(&["controls"], |controls| {
        let mut values = controls.to_f64();
        values.chunks_mut(CONTROLS).for_each(|row| row[which] = change(row[which]));
        Tensor::new(controls.shape(), values).cast(controls.dtype())
    })
}

/// One token less, by a sufficiently smaller top-p.
fn short_of_top_p(given: &FaultInput<'_>) -> Option<TensorMap> {
    let vocabulary = given.inputs["logits"].shape()[1];
    // With few equal tokens, one is a large part of all.
    (vocabulary <= 33).then(|| control(given, 1, |p| (p - 0.2).max(1e-9)))?
}

fn integers(tensor: &Tensor, change: impl Fn(i32) -> i32) -> Tensor {
    let values = tensor.view::<i32>().unwrap().iter().map(|x| change(*x));
    Tensor::new(tensor.shape(), values.collect::<Vec<i32>>())
}

fn prompt_counted(given: &FaultInput<'_>) -> Option<TensorMap> {
    let added = |count| if count == IN_PROMPT { IN_PROMPT | 1 } else { count };
    given.with(&["counts"], |counts| integers(counts, added))
}

fn wider(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.with(&["top_k"], |k| integers(k, |k| if k > 0 { k + 1 } else { 0 }))
}

fn no_top_k(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.with(&["top_k"], |k| integers(k, |_| 0))
}

fn mask_reversed(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.with(&["mask"], |mask| integers(mask, i32::reverse_bits))
}

fn next(given: &FaultInput<'_>, name: &'static str) -> Option<TensorMap> {
    given.with(&[name], |tensor| {
        integers(tensor, |x| if x < 0 && name == "slots" { x } else { x ^ 1 })
    })
}

fn one_off(given: &FaultInput<'_>) -> Option<TensorMap> {
    let vocabulary = given.inputs["logits"].shape()[1] as f64;
    Some(given.replacing("token", |tokens| {
        tokens.iter_mut().for_each(|token| *token = (*token + 1.0) % vocabulary);
    }))
}

/// Shifted by the difference to a sum over fewer tokens.
fn unnormalised(given: &FaultInput<'_>) -> Option<TensorMap> {
    given.right.get("logprob")?;
    Some(given.replacing("top_logprobs", |all| all.iter_mut().for_each(|x| *x += 0.1)))
}

fn by_number(given: &FaultInput<'_>) -> Option<TensorMap> {
    let top = given.right.get("top_tokens")?.shape()[1];
    Some(given.replacing("top_tokens", |all| {
        all.chunks_mut(top).for_each(|row| row.sort_by(f64::total_cmp));
    }))
}
