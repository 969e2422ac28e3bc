//! The op in float64, straight from its definition.

use super::{Activation, RmsNormProblem};
use crate::{Inputs, Problem, Tensor, TensorMap};

/// `o` in float64.
pub(super) fn reference(problem: &RmsNormProblem, inputs: Inputs<'_>) -> TensorMap {
    let (groups, channels) = (problem.groups, problem.channels);
    let x = inputs.tensor("x").to_f64(); // [B, T, G, D]
    let gate = inputs.get("gate").map(Tensor::to_f64); // [B, T, G, D]
    let weight = inputs.get("weight").map(Tensor::to_f64); // [D] or [G, D]
    let mut o = vec![0.0; x.len()]; // [B, T, G, D]

    for row in 0..problem.rows() {
        // The activated gate of a channel.
        let factor = |channel: usize| match (&gate, problem.gate) {
            (Some(gate), Some(Activation::Sigmoid)) => {
                1.0 / (1.0 + (-gate[row * channels + channel]).exp())
            }
            (Some(gate), _) => {
                let g = gate[row * channels + channel];
                g / (1.0 + (-g).exp())
            }
            (None, _) => 1.0,
        };
        let normalised = |channel: usize| match problem.norm_before_gate {
            true => x[row * channels + channel],
            false => x[row * channels + channel] * factor(channel),
        };
        let squares: f64 = (0..channels).map(|channel| normalised(channel).powi(2)).sum();
        let root = (squares / channels as f64 + problem.eps).sqrt();
        let first = if problem.weight_per_group { row % groups * channels } else { 0 };
        for channel in 0..channels {
            let mut y = normalised(channel) / root;
            if let Some(weight) = &weight {
                y *= weight[first + channel];
            }
            if problem.norm_before_gate {
                y *= factor(channel);
            }
            o[row * channels + channel] = y;
        }
    }

    let shape = problem.outputs().swap_remove(0).shape;
    TensorMap::from([("o".to_owned(), Tensor::new(&shape, o))])
}
