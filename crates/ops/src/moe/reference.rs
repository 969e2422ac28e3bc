//! The op in float64, expert by expert, from the formulas. It shares no code with the fast variants.

use super::check::{RouterScores, check_choice};
use super::problem::scale_names;
use super::{Clamp, MoeProblem, Score};
use crate::{DType, Inputs, Problem, Tensor, TensorMap};
use rayon::prelude::*;

/// The outputs with the reference's own choice of experts.
pub(super) fn reference(problem: &MoeProblem, inputs: Inputs<'_>) -> TensorMap {
    match solve(problem, inputs, None) {
        Ok(outputs) => outputs,
        Err(broken) => unreachable!("only a given choice can be invalid: {broken}"),
    }
}

/// The outputs with the choice in `outputs`, after checking it; with the reference's own choice if `outputs` has none.
pub(super) fn reference_given(
    problem: &MoeProblem,
    inputs: Inputs<'_>,
    outputs: &TensorMap,
) -> Result<TensorMap, String> {
    let Some(chosen) = outputs.get("chosen") else { return solve(problem, inputs, None) };
    match chosen.view::<i32>() {
        Some(values) if values.len() == problem.pairs() => solve(problem, inputs, Some(values)),
        _ => Err(format!(
            "tensor `chosen` is {} of shape {:?}, wanted i32 [{}, {}]",
            chosen.dtype(),
            chosen.shape(),
            problem.tokens,
            problem.of_token()
        )),
    }
}

fn solve(
    problem: &MoeProblem,
    inputs: Inputs<'_>,
    given: Option<&[i32]>,
) -> Result<TensorMap, String> {
    let (hidden, k) = (problem.hidden, problem.of_token());
    let logits = inputs.tensor("logits").to_f64(); // [T, E]
    let correction = inputs.get("correction").map(Tensor::to_f64); // [E]
    let mut chosen: Vec<usize> = Vec::new(); // [T, K]
    let mut weights: Vec<f64> = Vec::new(); // [T, K]
    for token in 0..problem.tokens {
        let logits = &logits[token * problem.experts..][..problem.experts];
        let wanted = RouterScores { logits, correction: correction.as_deref() };
        let experts = match given {
            Some(given) => check_choice(problem, &wanted, &given[token * k..][..k])
                .map_err(|broken| format!("token {token}: {broken}"))?,
            None => choose_top_k(problem, &wanted),
        };
        weights.extend(expert_weights(problem, logits, &experts));
        chosen.extend(experts);
        // Shared experts have no logits and weight 1.
        weights.extend(vec![1.0; problem.always]);
        chosen.extend(problem.experts..problem.experts + problem.always);
    }

    let x = inputs.tensor("x").to_f64(); // [T, H]
    // An expert's outputs for the tokens that chose it: (pair, [H]).
    let of_expert = |expert: usize| -> Vec<(usize, Vec<f64>)> {
        let pairs: Vec<usize> = (0..chosen.len()).filter(|pair| chosen[*pair] == expert).collect();
        if pairs.is_empty() {
            return Vec::new();
        }
        let gate_up = dequantize(problem, inputs, "w_gate_up", expert - problem.first); // [2I, H]; [I, H] ungated
        let down = dequantize(problem, inputs, "w_down", expert - problem.first); // [H, I]
        let place = expert - problem.first;
        let bias = |name: &str| match inputs.get(name) {
            Some(bias) => bias.part(&[place..place + 1, 0..bias.shape()[1]]).to_f64(),
            None => vec![0.0; problem.ups().max(hidden)],
        };
        let biases = ["gate_up_bias", "down_bias"].map(bias); // [2I], [H]
        let apply = |pair: usize| {
            let x = &x[pair / k * hidden..][..hidden];
            (pair, mlp(problem, x, [&gate_up, &down], &biases))
        };
        pairs.into_iter().map(apply).collect()
    };
    let here = problem.first..problem.first + problem.held;
    let made: Vec<_> = here.into_par_iter().flat_map(of_expert).collect();

    let mut o = match inputs.get("residual") {
        Some(residual) => residual.to_f64(),
        None => vec![0.0; problem.tokens * hidden],
    }; // [T, H]
    for (pair, y) in made {
        for (o, y) in o[pair / k * hidden..][..hidden].iter_mut().zip(y) {
            *o += problem.scale * weights[pair] * y;
        }
    }
    let chosen = chosen.into_iter().map(|expert| expert as f64).collect();
    let values = [o, chosen, weights];
    let named = problem.outputs().into_iter().zip(values);
    Ok(named.map(|(of, values)| (of.name.to_owned(), Tensor::new(&of.shape, values))).collect())
}

/// One expert's dequantized matrix; those of all experts may take gigabytes.
fn dequantize(problem: &MoeProblem, inputs: Inputs<'_>, w: &str, expert: usize) -> Vec<f64> {
    let part = |tensor: &Tensor| {
        let shape = tensor.shape();
        tensor.part(&[expert..expert + 1, 0..shape[1], 0..shape[2]]).to_f64()
    };
    let tensor = inputs.tensor(w);
    let mut values = part(tensor);
    let Some(quantized) = problem.quantized else { return values };
    let [scale, offset] = scale_names(w).map(|name| inputs.get(name));
    let Some(scale) = scale else { return values };
    let (groups, rows, columns) = (scale.shape()[1], tensor.shape()[1], tensor.shape()[2]);
    let (scale, offset) = (part(scale), offset.map(part)); // [G, rows]
    // The zero point of u4 weights without offsets.
    let middle = if quantized.dtype == DType::U4 { 8.0 } else { 0.0 };
    for (row, values) in values.chunks_mut(columns).enumerate() {
        for (column, value) in values.iter_mut().enumerate() {
            let group = if groups == 1 { 0 } else { column / quantized.group };
            let at = group * rows + row;
            let below = offset.as_ref().map_or(middle * scale[at], |offset| offset[at]);
            *value = *value * scale[at] - below;
        }
    }
    values
}

/// The top-k experts by falling score, the lower of equal ones first.
fn choose_top_k(problem: &MoeProblem, wanted: &RouterScores<'_>) -> Vec<usize> {
    let mut left: Vec<usize> = (0..problem.experts).collect();
    let take = |_| {
        let of = |at: usize, left: &[usize]| wanted.of(problem, left[at]);
        let most = (0..left.len())
            .fold(0, |most, at| if of(at, &left) > of(most, &left) { at } else { most });
        left.remove(most)
    };
    (0..problem.top_k).map(take).collect()
}

/// The weights of a token's chosen experts.
fn expert_weights(problem: &MoeProblem, logits: &[f64], chosen: &[usize]) -> Vec<f64> {
    let scores: Vec<f64> = match problem.score {
        Score::SoftmaxOfChosen | Score::SoftmaxOfAll => {
            let largest = chosen.iter().map(|e| logits[*e]).fold(f64::NEG_INFINITY, f64::max);
            chosen.iter().map(|e| (logits[*e] - largest).exp()).collect()
        }
        Score::Sigmoid { .. } => chosen.iter().map(|e| 1.0 / (1.0 + (-logits[*e]).exp())).collect(),
    };
    let sum: f64 = match problem.score {
        Score::SoftmaxOfChosen => scores.iter().sum(),
        Score::SoftmaxOfAll => {
            let largest = chosen.iter().map(|e| logits[*e]).fold(f64::NEG_INFINITY, f64::max);
            logits.iter().map(|logit| (logit - largest).exp()).sum()
        }
        Score::Sigmoid { renormalise: true } => scores.iter().sum::<f64>() + problem.sum_eps,
        Score::Sigmoid { renormalise: false } => 1.0,
    };
    scores.iter().map(|score| score / sum * problem.weight_scale).collect()
}

/// W_down (silu(gate) * up), with [gate | up] = W_gate_up x; without gates W_down max(0, W_gate_up x)^2; clamped
/// W_down (g sigmoid(alpha g) (u + 1)) + bias, where g and u include the bias of W_gate_up.
fn mlp(
    problem: &MoeProblem,
    x: &[f64],
    [gate_up, down]: [&[f64]; 2],
    [first_bias, bias]: &[Vec<f64>; 2],
) -> Vec<f64> {
    let (hidden, intermediate) = (problem.hidden, problem.intermediate);
    let dot = |row: &[f64], x: &[f64]| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
    let inner: Vec<f64> = (0..intermediate)
        .map(|channel| {
            let gate = dot(&gate_up[channel * hidden..][..hidden], x);
            if !problem.gated {
                return gate.max(0.0).powi(2);
            }
            let up = dot(&gate_up[(intermediate + channel) * hidden..][..hidden], x);
            let Some(Clamp { limit, alpha }) = problem.clamp else {
                return gate / (1.0 + (-gate).exp()) * up;
            };
            let g = (gate + first_bias[channel]).min(limit);
            let u = (up + first_bias[intermediate + channel]).clamp(-limit, limit);
            g / (1.0 + (-alpha * g).exp()) * (u + 1.0)
        })
        .collect(); // [I]
    let made = |row: usize| dot(&down[row * intermediate..][..intermediate], &inner) + bias[row];
    (0..hidden).map(made).collect()
}
