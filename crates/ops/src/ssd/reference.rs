//! The op in float64, token by token, straight from the recurrence.

use super::SsdProblem;
use crate::{Inputs, Tensor, TensorMap};
use rayon::prelude::*;

/// Step size of one token and head: softplus (identity above 20, where they agree to 2e-9), then the limits.
pub(super) fn step(problem: &SsdProblem, raw: f64) -> f64 {
    let dt = match problem.dt_softplus {
        true if raw <= 20.0 => raw.exp().ln_1p(),
        _ => raw,
    };
    dt.clamp(problem.dt_min, problem.dt_max)
}

/// `o` and `final_state` in float64.
pub(super) fn reference(problem: &SsdProblem, inputs: Inputs<'_>) -> TensorMap {
    let read = |name: &str| inputs.get(name).map(Tensor::to_f64);
    let required = |name: &str| inputs.tensor(name).to_f64();
    let (heads, groups) = (problem.heads, problem.groups);
    let (head_dim, state_dim) = (problem.head_dim, problem.state_dim);
    let x = required("x"); // [total, H, P]
    let dt = required("dt"); // [total, H]
    let rate = required("A"); // [H]
    let b = required("B"); // [total, G, N]
    let c = required("C"); // [total, G, N]
    let bias = read("dt_bias").unwrap_or_else(|| vec![0.0; heads]); // [H]
    let z = read("z"); // [total, H, P]
    let d = skip_weights(problem, inputs); // [H, P]
    let state_len = head_dim * state_dim;
    let mut state = // [slots, H, P, N]
        read("initial_state").unwrap_or_else(|| vec![0.0; problem.slots.count() * heads * state_len]);
    let mut o = vec![0.0; problem.sequences.total() * heads * head_dim]; // [total, H, P]

    for (sequence, tokens) in problem.sequences.iter().enumerate() {
        let Some(slot) = problem.slots.of(sequence) else { continue };
        for head in 0..heads {
            let group = head / (heads / groups);
            let h = &mut state[(slot * heads + head) * state_len..][..state_len]; // [P, N]
            // Each channel of a head has a separate state, [N].
            let solve = |(p, h): (usize, &mut [f64])| -> Vec<f64> {
                let of_token = |token: usize| {
                    let dt = step(problem, dt[token * heads + head] + bias[head]);
                    let decay = (dt * rate[head]).exp();
                    let b = &b[(token * groups + group) * state_dim..][..state_dim];
                    let c = &c[(token * groups + group) * state_dim..][..state_dim];
                    let at = (token * heads + head) * head_dim + p;
                    let mut y = d[head * head_dim + p] * x[at];
                    for n in 0..state_dim {
                        h[n] = decay * h[n] + dt * x[at] * b[n];
                        y += h[n] * c[n];
                    }
                    match &z {
                        Some(z) => y * z[at] / (1.0 + (-z[at]).exp()),
                        None => y,
                    }
                };
                tokens.clone().map(of_token).collect()
            };
            let solved: Vec<_> =
                h.par_chunks_mut(state_dim.max(1)).enumerate().map(solve).collect();
            for (p, outputs) in solved.into_iter().enumerate() {
                let at = |token: usize| (token * heads + head) * head_dim + p;
                tokens.clone().zip(outputs).for_each(|(token, y)| o[at(token)] = y);
            }
        }
    }

    let [o_spec, state_spec] = [0, 1].map(|index| problem_output(problem, index));
    TensorMap::from([
        ("o".to_owned(), Tensor::new(&o_spec, o)),
        ("final_state".to_owned(), Tensor::new(&state_spec, state)),
    ])
}

/// D as `[H, P]`, zero when it is not given.
pub(super) fn skip_weights(problem: &SsdProblem, inputs: Inputs<'_>) -> Vec<f64> {
    let len = problem.heads * problem.head_dim;
    match inputs.get("D").map(|d| (d.shape().len(), d.to_f64())) {
        None => vec![0.0; len],
        Some((2, d)) => d,
        Some((_, d)) => (0..len).map(|at| d[at / problem.head_dim]).collect(),
    }
}

fn problem_output(problem: &SsdProblem, index: usize) -> Vec<usize> {
    crate::Problem::outputs(problem)[index].shape.clone()
}
