//! The op in float64, straight from its definition.

use super::{Activation, Conv1dProblem, Layout};
use crate::{Inputs, Problem, Tensor, TensorMap};

/// `o` and `final_state` in float64.
pub(super) fn reference(problem: &Conv1dProblem, inputs: Inputs<'_>) -> TensorMap {
    let (channels, width, state_len) = (problem.channels, problem.width, problem.state_len);
    let x = inputs.tensor("x").to_f64(); // [total, C] or [B, C, T]
    let weight = inputs.tensor("weight").to_f64(); // [C, W]
    let bias = inputs.get("bias").map_or_else(|| vec![0.0; channels], Tensor::to_f64); // [C]
    let initial = inputs.get("initial_state").map(Tensor::to_f64); // [slots, C, S]
    let mut state = // [slots, C, S]
        initial.clone().unwrap_or_else(|| vec![0.0; problem.slots.count() * channels * state_len]);
    let positions = inputs.get("state_positions").and_then(|positions| positions.view::<i32>());
    let mut o = vec![0.0; x.len()]; // like x

    for (sequence, tokens) in problem.sequences.iter().enumerate() {
        let Some(slot) = problem.slots.of(sequence) else { continue };
        let len = tokens.len();
        for channel in 0..channels {
            let at = |token: usize| match problem.layout {
                Layout::ChannelLast => (tokens.start + token) * channels + channel,
                Layout::ChannelFirst => (sequence * channels + channel) * len + token,
            };
            // The state's column of token `t` of this sequence; tokens before the sequence have t < 0. In a ring buffer
            // it is (position + t) mod S. Otherwise the state ends with the newest token, so columns count back from it.
            let row = (slot * channels + channel) * state_len;
            let column = |token: isize, seen: usize| match positions {
                Some(positions) => {
                    (positions[sequence] as isize + token).rem_euclid(state_len as isize) as usize
                }
                None => (state_len as isize - seen as isize + token) as usize,
            };
            let value = |token: isize| match (usize::try_from(token), &initial) {
                (Ok(token), _) => x[at(token)],
                (Err(_), Some(initial)) => initial[row + column(token, 0)],
                (Err(_), None) => 0.0,
            };
            for token in 0..len {
                let mut y = bias[channel];
                for tap in 0..width {
                    let from = token as isize - (width - 1 - tap) as isize;
                    y += weight[channel * width + tap] * value(from);
                }
                o[at(token)] = match problem.activation {
                    Activation::None => y,
                    Activation::Silu => y / (1.0 + (-y).exp()),
                };
            }
            // The state holds the last S tokens.
            for token in len as isize - state_len as isize..len as isize {
                state[row + column(token, len)] = value(token);
            }
        }
    }

    let shapes = problem.outputs();
    TensorMap::from([
        ("o".to_owned(), Tensor::new(&shapes[0].shape, o)),
        ("final_state".to_owned(), Tensor::new(&shapes[1].shape, state)),
    ])
}
