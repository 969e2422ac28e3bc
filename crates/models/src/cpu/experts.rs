use super::mlp::CpuMlp;
use super::rows::{add_scaled, sigmoid};
use super::weights::{CpuProjection, Weights};
use crate::ModelError;
use crate::layers::{Experts, Score};
use device::Device;

/// Routed experts. Each reads its weights once for all tokens that chose it.
pub(super) struct CpuExperts {
    router: CpuProjection,
    score: Score,
    correction: Vec<f32>,
    per_token: usize,
    experts: Vec<CpuMlp>,
    hidden: usize,
}

impl CpuExperts {
    pub(super) fn new(of: &Experts, weights: &Weights<'_>) -> Result<Self, ModelError> {
        Ok(Self {
            router: weights.projection(&of.router)?,
            score: of.score,
            correction: match of.score {
                Score::SoftmaxOfChosen => vec![0.0; of.experts.len()],
                Score::Sigmoid { correction, .. } => weights.vector(correction)?,
            },
            per_token: of.per_token,
            experts: of
                .experts
                .iter()
                .map(|of| CpuMlp::new(of, weights))
                .collect::<Result<_, _>>()?,
            hidden: of.router.inputs,
        })
    }

    pub(super) fn apply(&self, device: &Device, x: &[f32]) -> Vec<f32> {
        let logits = self.router.apply(device, x);
        let mut tokens_of = vec![Vec::new(); self.experts.len()];
        for (token, logits) in logits.chunks_exact(self.experts.len()).enumerate() {
            for (expert, weight) in self.route(logits) {
                tokens_of[expert].push((token, weight));
            }
        }
        let mut y = vec![0f32; x.len()];
        let row = |token: usize| token * self.hidden..(token + 1) * self.hidden;
        for (expert, tokens) in self.experts.iter().zip(&tokens_of) {
            if tokens.is_empty() {
                continue;
            }
            let own: Vec<f32> =
                tokens.iter().flat_map(|(token, _)| &x[row(*token)]).copied().collect();
            let made = expert.apply(device, &own);
            for ((token, weight), made) in tokens.iter().zip(made.chunks_exact(self.hidden)) {
                add_scaled(&mut y[row(*token)], made, *weight);
            }
        }
        y
    }

    /// The experts of one token with their weights. Of equal scores the lower index is taken.
    fn route(&self, logits: &[f32]) -> Vec<(usize, f32)> {
        let scores: Vec<f32> = match self.score {
            Score::SoftmaxOfChosen => logits.to_vec(),
            Score::Sigmoid { .. } => logits.iter().map(|logit| sigmoid(*logit)).collect(),
        };
        let ranked = |expert: &usize| scores[*expert] + self.correction[*expert];
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|a, b| ranked(b).total_cmp(&ranked(a)));
        order.truncate(self.per_token);
        let mut weights: Vec<f32> = order.iter().map(|expert| scores[*expert]).collect();
        match self.score {
            Score::SoftmaxOfChosen => {
                // The choice is sorted: the first logit is the largest.
                let largest = weights.first().copied().unwrap_or(0.0);
                weights.iter_mut().for_each(|weight| *weight = (*weight - largest).exp());
                let sum: f32 = weights.iter().sum();
                weights.iter_mut().for_each(|weight| *weight /= sum);
            }
            Score::Sigmoid { renormalise, scale, .. } => {
                let sum = if renormalise { weights.iter().sum::<f32>() + 1e-20 } else { 1.0 };
                weights.iter_mut().for_each(|weight| *weight = *weight / sum * scale as f32);
            }
        }
        order.into_iter().zip(weights).collect()
    }
}
