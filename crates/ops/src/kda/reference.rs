//! The recurrence of the README, token by token in float64.

use super::{Beta, Gate, KdaProblem};
use crate::{Inputs, Tensor, TensorMap};
use rayon::prelude::*;

pub(super) fn reference(problem: &KdaProblem, inputs: Inputs<'_>) -> TensorMap {
    let (hv, kd, vd) = (problem.value_heads, problem.key_dim, problem.value_dim);
    let q = inputs.tensor("q").to_f64(); // [total, H, K]
    let k = inputs.tensor("k").to_f64(); // [total, H, K]
    let v = inputs.tensor("v").to_f64(); // [total, HV, V]
    let log_decay = log_decay(problem, inputs); // [total, HV, K]
    let beta = write_strength(problem, inputs); // [total, HV]
    let mut states = match inputs.get("initial_state") {
        Some(initial) => initial.to_f64(), // [slots, HV, K, V]
        None => vec![0.0; problem.slots.count() * hv * kd * vd],
    };
    let mut o = vec![0.0; problem.sequences.total() * hv * vd]; // [total, HV, V]

    for (sequence, tokens) in problem.sequences.iter().enumerate() {
        let Some(slot) = problem.slots.of(sequence) else { continue }; // Padding: its rows of o stay 0.
        for head in 0..hv {
            let steps: Vec<Step> = tokens
                .clone()
                .map(|t| {
                    let shared = (t * problem.heads + problem.head_of(head)) * kd;
                    let own = t * hv + head;
                    let mut q = q[shared..][..kd].to_vec();
                    let mut k = k[shared..][..kd].to_vec();
                    if problem.l2norm {
                        normalise(&mut q);
                        normalise(&mut k);
                    }
                    q.iter_mut().for_each(|q| *q *= problem.scale);
                    let decay = log_decay[own * kd..][..kd].iter().map(|g| g.exp()).collect();
                    Step { q, k, decay, beta: beta[own] }
                })
                .collect();
            let state = &mut states[(slot * hv + head) * kd * vd..][..kd * vd]; // [K, V]
            let row = |t: usize| (t * hv + head) * vd;
            let solve = |channel: usize| {
                let column: Vec<f64> = (0..kd).map(|row| state[row * vd + channel]).collect();
                let values = tokens.clone().map(|t| v[row(t) + channel]);
                of_channel(column, &steps, values)
            };
            // Value channels are independent: each is a column of the state.
            let solved: Vec<_> = (0..vd).into_par_iter().map(solve).collect();
            for (channel, (column, outputs)) in solved.into_iter().enumerate() {
                column.iter().enumerate().for_each(|(row, s)| state[row * vd + channel] = *s);
                tokens.clone().zip(outputs).for_each(|(t, value)| o[row(t) + channel] = value);
            }
        }
    }
    TensorMap::from([
        ("o".to_owned(), Tensor::new(&problem.sequences.shape(&[hv, vd]), o)),
        ("final_state".to_owned(), Tensor::new(&[problem.slots.count(), hv, kd, vd], states)),
    ])
}

/// The inputs of one token and head: query, key and decay of each key channel, and the write strength.
struct Step {
    q: Vec<f64>,
    k: Vec<f64>,
    decay: Vec<f64>,
    beta: f64,
}

/// One column of the state after all tokens, and each token's output: `s <- exp(g) s`, then `s <- s + beta k (v - k^T s)`, then
/// `o = q^T s`.
fn of_channel(
    mut s: Vec<f64>,
    steps: &[Step],
    values: impl Iterator<Item = f64>,
) -> (Vec<f64>, Vec<f64>) {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let token = |(Step { q, k, decay, beta }, v): (&Step, f64)| {
        s.iter_mut().zip(decay).for_each(|(s, decay)| *s *= decay);
        let write = beta * (v - dot(k, &s));
        s.iter_mut().zip(k).for_each(|(s, k)| *s += k * write);
        dot(q, &s)
    };
    let outputs = steps.iter().zip(values).map(token).collect();
    (s, outputs)
}

/// `x / sqrt(sum x^2 + 1e-6)`.
pub(crate) fn normalise(x: &mut [f64]) {
    let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
    x.iter_mut().for_each(|x| *x /= norm);
}

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `ln(1 + e^x)`, without overflow.
pub(crate) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// The log decay of every token, value head and gate, `[total, HV, K]`; `[total, HV]` if the channels share one.
pub(super) fn log_decay(problem: &KdaProblem, inputs: Inputs<'_>) -> Vec<f64> {
    let g = inputs.tensor("g").to_f64();
    if problem.gate == Gate::LogDecay {
        return g;
    }
    let per_token = problem.value_heads * problem.gate_dim();
    let a_log = inputs.tensor("A_log").to_f64(); // [HV]
    let bias = match inputs.get("dt_bias") {
        Some(bias) => bias.to_f64(), // [HV, K]
        None => vec![0.0; per_token],
    };
    let log_decay = |(index, g): (usize, &f64)| {
        let channel = index % per_token;
        let (rate, x) = (a_log[channel / problem.gate_dim()].exp(), g + bias[channel]);
        match problem.gate {
            Gate::LogDecay => *g,
            Gate::Plain => -rate * softplus(x),
            Gate::Safe { lower_bound } => lower_bound * sigmoid(rate * x),
        }
    };
    g.iter().enumerate().map(log_decay).collect()
}

/// The write strength of every token and value head, `[total, HV]`.
pub(crate) fn write_strength(problem: &KdaProblem, inputs: Inputs<'_>) -> Vec<f64> {
    let beta = inputs.tensor("beta").to_f64();
    match problem.beta {
        Beta::AsGiven => beta,
        Beta::Sigmoid { factor } => beta.into_iter().map(|x| factor * sigmoid(x)).collect(),
    }
}
