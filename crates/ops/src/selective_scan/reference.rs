//! The op in float64, token by token, straight from the recurrence.

use super::SelectiveScanProblem;
use crate::{Inputs, Problem, Tensor, TensorMap};

/// Step size of one token and channel: softplus, the identity above 20, where they agree to 2e-9.
fn step(problem: &SelectiveScanProblem, raw: f64) -> f64 {
    match problem.delta_softplus {
        true if raw <= 20.0 => raw.exp().ln_1p(),
        _ => raw,
    }
}

/// `o` and `final_state` in float64.
pub(super) fn reference(problem: &SelectiveScanProblem, inputs: Inputs<'_>) -> TensorMap {
    let read = |name: &str| inputs.get(name).map(Tensor::to_f64);
    let required = |name: &str| inputs.tensor(name).to_f64();
    let SelectiveScanProblem { channels, groups, state_dim, .. } = *problem;
    let u = required("u"); // [total, E]
    let delta = required("delta"); // [total, E]
    let a = required("A"); // [E, N]
    let b = required("B"); // [total, G, N]
    let c = required("C"); // [total, G, N]
    let d = read("D").unwrap_or_else(|| vec![0.0; channels]); // [E]
    let z = read("z"); // [total, E]
    let bias = read("delta_bias").unwrap_or_else(|| vec![0.0; channels]); // [E]
    let mut state = // [slots, E, N]
        read("initial_state").unwrap_or_else(|| vec![0.0; problem.slots.count() * channels * state_dim]);
    let mut o = vec![0.0; problem.sequences.total() * channels]; // [total, E]

    for (sequence, tokens) in problem.sequences.iter().enumerate() {
        let Some(slot) = problem.slots.of(sequence) else { continue };
        for channel in 0..channels {
            let group = channel / (channels / groups);
            let h = &mut state[(slot * channels + channel) * state_dim..][..state_dim]; // [N]
            for token in tokens.clone() {
                let at = token * channels + channel;
                let dt = step(problem, delta[at] + bias[channel]);
                let mut y = d[channel] * u[at];
                for n in 0..state_dim {
                    let projection = (token * groups + group) * state_dim + n;
                    h[n] =
                        (dt * a[channel * state_dim + n]).exp() * h[n] + dt * u[at] * b[projection];
                    y += h[n] * c[projection];
                }
                o[at] = match &z {
                    Some(z) => y * z[at] / (1.0 + (-z[at]).exp()),
                    None => y,
                };
            }
        }
    }

    let outputs = problem.outputs();
    let [o_shape, state_shape] = [0, 1].map(|index| &outputs[index].shape);
    TensorMap::from([
        ("o".to_owned(), Tensor::new(o_shape, o)),
        ("final_state".to_owned(), Tensor::new(state_shape, state)),
    ])
}
