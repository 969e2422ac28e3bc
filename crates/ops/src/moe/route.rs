//! The router's choice in float32, used to count the experts that a call reads and by variants over host memory.

use super::{MoeProblem, Score};
use crate::{Inputs, floats};
use rayon::prelude::*;

/// Experts and weights of every token.
pub struct Routes {
    /// `[T, K]`: routed experts by falling score, then the shared ones.
    pub chosen: Vec<i32>,
    /// `[T, K]`.
    pub weights: Vec<f32>,
}

/// Chooses and weighs the experts of every token.
pub fn route(problem: &MoeProblem, inputs: Inputs<'_>) -> Routes {
    let logits = floats(inputs.tensor("logits"));
    let correction = inputs.get("correction").map(floats);
    let of_token = |logits: &[f32]| choose(problem, logits, correction.as_deref());
    let tokens: Vec<_> = logits.par_chunks(problem.experts.max(1)).map(of_token).collect();
    let (mut chosen, mut weights) = (Vec::new(), Vec::new());
    for (of_token, with) in tokens {
        chosen.extend(of_token);
        weights.extend(with);
    }
    Routes { chosen, weights }
}

fn choose(
    problem: &MoeProblem,
    logits: &[f32],
    correction: Option<&[f32]>,
) -> (Vec<i32>, Vec<f32>) {
    let scores: Vec<f32> = match problem.score {
        Score::SoftmaxOfChosen | Score::SoftmaxOfAll => logits.to_vec(),
        Score::Sigmoid { .. } => logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect(),
    };
    let wanted = |expert: usize| scores[expert] + correction.map_or(0.0, |of| of[expert]);
    let mut order: Vec<usize> = (0..scores.len()).collect();
    // `total_cmp` orders -0 before 0; adding 0 turns -0 into 0.
    let by_want =
        |a: &usize, b: &usize| (wanted(*b) + 0.0).total_cmp(&(wanted(*a) + 0.0)).then(a.cmp(b));
    if problem.top_k < order.len() {
        order.select_nth_unstable_by(problem.top_k - 1, by_want);
        order.truncate(problem.top_k);
    }
    order.sort_unstable_by(by_want);
    let mut weights: Vec<f32> = order.iter().map(|expert| scores[*expert]).collect();
    let factor = problem.weight_scale as f32;
    match problem.score {
        Score::SoftmaxOfChosen | Score::SoftmaxOfAll => {
            let largest = weights.first().copied().unwrap_or(0.0);
            weights.iter_mut().for_each(|weight| *weight = (*weight - largest).exp());
            let sum: f32 = match problem.score {
                Score::SoftmaxOfAll => logits.iter().map(|logit| (logit - largest).exp()).sum(),
                _ => weights.iter().sum(),
            };
            weights.iter_mut().for_each(|weight| *weight *= factor / sum);
        }
        Score::Sigmoid { renormalise } => {
            let eps = problem.sum_eps as f32;
            let sum = if renormalise { weights.iter().sum::<f32>() + eps } else { 1.0 };
            weights.iter_mut().for_each(|weight| *weight *= factor / sum);
        }
    }
    let always = problem.experts..problem.experts + problem.always;
    weights.extend(always.clone().map(|_| 1.0));
    (order.into_iter().chain(always).map(|expert| expert as i32).collect(), weights)
}
