use super::Cpu;
use super::rows::{add_scaled, gelu, sigmoid};
use super::weights::{CpuProjection, Weights};
use crate::ModelError;
use crate::layers::{ClampedExperts, ExpertGroups, Experts, GatedMlp, RouterScore};
use crate::program::Loader;
use device::{Device, HostBuffer};
use ops::Tensor;
use rayon::prelude::*;

/// Routed experts. Each reads its weights once for all tokens routed to it.
pub(crate) struct CpuExperts {
    score: RouterScore,
    correction: Option<Tensor>,
    /// A factor of each expert's weight.
    scales: Option<Vec<f32>>,
    per_token: usize,
    /// Index of this rank's first expert.
    first: usize,
    /// Whether an expert has a gate projection in addition to its up projection.
    gated: bool,
    /// Whether the gate's activation is GELU.
    gelu: bool,
    /// Biases of gate and up and of the outputs, `[experts, outputs]`, with limit and alpha.
    clamped: Option<([Vec<f32>; 2], [f32; 2])>,
    /// Gate and up, and the down projection, of each expert.
    experts: Vec<[CpuProjection; 2]>,
}

impl CpuExperts {
    pub(super) fn new(of: &Experts, weights: &Weights<'_>) -> Result<Self, ModelError> {
        let clamped = match of.clamped {
            None => None,
            Some(ClampedExperts { gate_up_bias, down_bias, limit, alpha }) => {
                let read = |id| Loader::<Cpu>::read(weights, id);
                let biases = [read(gate_up_bias)?, read(down_bias)?];
                Some((biases, [limit as f32, alpha as f32]))
            }
        };
        let expert = |of: &GatedMlp| {
            let gate_up = match of.gated && !of.gelu && clamped.is_none() {
                true => Loader::<Cpu>::gated(weights, &of.gate_up)?,
                false => Loader::<Cpu>::projection(weights, &of.gate_up)?,
            };
            Ok([gate_up, Loader::<Cpu>::projection(weights, &of.down)?])
        };
        Ok(Self {
            score: of.score,
            correction: match of.score {
                RouterScore::Sigmoid { correction, .. } => {
                    Some(Loader::<Cpu>::vector(weights, correction)?)
                }
                _ => None,
            },
            scales: match of.score {
                RouterScore::ScaledSoftmax { scales, .. } => {
                    Some(Loader::<Cpu>::read(weights, scales)?)
                }
                _ => None,
            },
            per_token: of.per_token,
            first: of.first,
            gated: of.experts.first().is_none_or(|expert| expert.gated),
            gelu: of.experts.first().is_some_and(|expert| expert.gelu),
            experts: of.experts.iter().map(expert).collect::<Result<_, ModelError>>()?,
            clamped,
        })
    }

    /// The weighted sum of this rank's expert outputs for rows x `[tokens, hidden]`, given router logits `[tokens,
    /// experts]`.
    pub(super) fn apply(
        &self,
        device: &Device,
        x: &[f32],
        logits: &[f32],
        tokens: usize,
    ) -> Vec<f32> {
        let mut tokens_of = vec![Vec::new(); self.experts.len()];
        for (token, logits) in logits.chunks_exact(logits.len() / tokens).enumerate() {
            for (expert, weight) in self.route(logits) {
                let own = expert.checked_sub(self.first).and_then(|own| tokens_of.get_mut(own));
                if let Some(own) = own {
                    own.push((token, weight));
                }
            }
        }
        let mut y = vec![0f32; x.len()];
        for (expert, ([gate_up, down], tokens)) in self.experts.iter().zip(&tokens_of).enumerate() {
            if tokens.is_empty() {
                continue;
            }
            let hidden = down.outputs();
            let row = |token: usize| token * hidden..(token + 1) * hidden;
            let own = |at: usize, to: &mut [f32]| to.copy_from_slice(&x[row(tokens[at].0)]);
            let inner = match self.gated {
                _ if self.clamped.is_some() => {
                    let both = gate_up.apply_whole(device, tokens.len(), own);
                    self.clamp(expert, &both, gate_up.outputs())
                }
                true if self.gelu => {
                    let both = gate_up.apply_whole(device, tokens.len(), own);
                    gelu_gated(&both, gate_up.outputs())
                }
                true => gate_up.apply_gated(device, tokens.len(), own),
                false => gate_up.apply_squared(device, tokens.len(), own),
            };
            let width = inner.len() / tokens.len();
            let inner =
                |at: usize, to: &mut [f32]| to.copy_from_slice(&inner[at * width..][..width]);
            let mut made = down.apply_whole(device, tokens.len(), inner);
            if let Some(([_, bias], _)) = &self.clamped {
                let bias = &bias[expert * hidden..][..hidden];
                made.chunks_exact_mut(hidden).for_each(|made| add_scaled(made, bias, 1.0));
            }
            for ((token, weight), made) in tokens.iter().zip(made.chunks_exact(hidden)) {
                add_scaled(&mut y[row(*token)], made, *weight);
            }
        }
        y
    }

    /// The clamped activation of an expert for rows of `both` values, gates first, with `ups` up values. NaN stays NaN.
    fn clamp(&self, expert: usize, both: &[f32], ups: usize) -> HostBuffer<f32> {
        let mut made = HostBuffer::filled(0f32, both.len() / 2);
        let Some(([bias, _], [limit, alpha])) = &self.clamped else { return made };
        let (gate_bias, up_bias) = bias[expert * ups..][..ups].split_at(ups / 2);
        let rows = made.par_chunks_exact_mut(ups / 2).zip(both.par_chunks_exact(ups));
        rows.for_each(|(made, both)| {
            let (gates, ups) = both.split_at(made.len());
            let of = gates.iter().zip(gate_bias).zip(ups.iter().zip(up_bias));
            made.iter_mut().zip(of).for_each(|(made, ((gate, gate_bias), (up, up_bias)))| {
                let gate = gate + gate_bias;
                let gate = if gate > *limit { *limit } else { gate };
                let up = (up + up_bias).clamp(-limit, *limit);
                *made = gate * sigmoid(alpha * gate) * (up + 1.0);
            });
        });
        made
    }

    /// The experts of one token with their weights. On equal scores the lower index is taken.
    fn route(&self, logits: &[f32]) -> Vec<(usize, f32)> {
        let scores: Vec<f32> = match self.score {
            RouterScore::SoftmaxOfChosen
            | RouterScore::SoftmaxOfAll
            | RouterScore::ScaledSoftmax { .. } => logits.to_vec(),
            RouterScore::Sigmoid { .. } => logits.iter().map(|logit| sigmoid(*logit)).collect(),
        };
        let correction = self.correction.as_ref().and_then(|correction| correction.view::<f32>());
        let ranked = |expert: &usize| scores[*expert] + correction.map_or(0.0, |all| all[*expert]);
        let mut order: Vec<usize> = (0..scores.len()).collect();
        if let RouterScore::Sigmoid { groups: Some(groups), .. } = self.score {
            order = within_groups(groups, scores.len(), ranked);
        }
        order.sort_by(|a, b| ranked(b).total_cmp(&ranked(a)));
        order.truncate(self.per_token);
        let mut weights: Vec<f32> = order.iter().map(|expert| scores[*expert]).collect();
        match self.score {
            RouterScore::SoftmaxOfChosen | RouterScore::ScaledSoftmax { .. } => {
                // The choice is sorted, so the first logit is the largest.
                let largest = weights.first().copied().unwrap_or(0.0);
                weights.iter_mut().for_each(|weight| *weight = (*weight - largest).exp());
                let sum: f32 = weights.iter().sum();
                weights.iter_mut().for_each(|weight| *weight /= sum);
            }
            RouterScore::SoftmaxOfAll => {
                let largest = weights.first().copied().unwrap_or(0.0);
                let sum: f32 = logits.iter().map(|logit| (logit - largest).exp()).sum();
                weights.iter_mut().for_each(|weight| *weight = (*weight - largest).exp() / sum);
            }
            RouterScore::Sigmoid { renormalise, sum_eps, scale, .. } => {
                let eps = sum_eps as f32;
                let sum = if renormalise { weights.iter().sum::<f32>() + eps } else { 1.0 };
                weights.iter_mut().for_each(|weight| *weight = *weight / sum * scale as f32);
            }
        }
        if let Some(scales) = &self.scales {
            let own = order.iter().map(|expert| scales[*expert]);
            weights.iter_mut().zip(own).for_each(|(weight, scale)| *weight *= scale);
        }
        order.into_iter().zip(weights).collect()
    }
}

/// `gelu(gate) * up` of rows of `ups` values, gates first.
fn gelu_gated(both: &[f32], ups: usize) -> HostBuffer<f32> {
    let mut made = HostBuffer::filled(0f32, both.len() / 2);
    let rows = made.par_chunks_exact_mut(ups / 2).zip(both.par_chunks_exact(ups));
    rows.for_each(|(made, both)| {
        let (gates, ups) = both.split_at(made.len());
        let of = gates.iter().zip(ups);
        made.iter_mut().zip(of).for_each(|(made, (gate, up))| *made = gelu(*gate) * up);
    });
    made
}

/// The experts of the groups whose two largest scores have the largest sums.
fn within_groups(
    groups: ExpertGroups,
    experts: usize,
    score: impl Fn(&usize) -> f32,
) -> Vec<usize> {
    let size = experts / groups.count;
    let best = |group: &usize| {
        let scores = (group * size..(group + 1) * size).map(|expert| score(&expert));
        let [first, second] = scores.fold([f32::NEG_INFINITY; 2], |[first, second], score| {
            if score > first { [score, first] } else { [first, second.max(score)] }
        });
        first + second
    };
    let mut order: Vec<usize> = (0..groups.count).collect();
    order.sort_by(|a, b| best(b).total_cmp(&best(a)));
    let mut chosen = order[..groups.chosen].to_vec();
    chosen.sort_unstable();
    chosen.into_iter().flat_map(|group| group * size..(group + 1) * size).collect()
}
