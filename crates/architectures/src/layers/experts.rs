use super::GatedMlp;
use crate::params::{ParamId, Params, Projection, Rows, fan_in};

/// Routed experts: `sum over the chosen of weight_e expert_e(x)`.
#[derive(Debug, Clone)]
pub struct Experts {
    /// One logit an expert.
    pub router: Projection,
    /// How logits become a choice and weights.
    pub score: Score,
    /// Experts that a token passes.
    pub per_token: usize,
    /// Projections to a narrower vector that the experts work on, and back from the sum of what they make; none: they work on
    /// what the router reads.
    pub latent: Option<[Projection; 2]>,
    /// The experts that this rank has.
    pub experts: Vec<Expert>,
    /// The first of them among all.
    pub first: usize,
}

/// One expert.
pub type Expert = GatedMlp;

/// Experts whose weights are stacked in two parameters: `[experts, 2 inner, hidden]`, the gate's rows first, and
/// `[experts, hidden, inner]`.
pub(crate) fn stacked(
    params: &mut Params,
    names: [String; 2],
    count: usize,
    [hidden, inner]: [usize; 2],
) -> Vec<Expert> {
    let mut fused = |name: String, outputs: usize, inputs: usize| {
        let param = params.add(name, &[count, outputs, inputs], fan_in(inputs));
        move |expert: usize| {
            Projection::of(Rows { param, first: expert * outputs, count: outputs }, inputs)
        }
    };
    let [gate_up, down] = names;
    let (gate_up, down) = (fused(gate_up, 2 * inner, hidden), fused(down, hidden, inner));
    let expert = |e| GatedMlp {
        gate_up: gate_up(e),
        down: down(e),
        gated: true,
        token_gate: None,
        factors: [1.0; 2],
    };
    (0..count).map(expert).collect()
}

/// How a router's logits become a choice of k experts and their weights, of the ways that engines know.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Score {
    /// The k largest logits, softmax over these.
    SoftmaxOfChosen,
    /// Sigmoid scores. The choice is by score plus a correction bias; weights are the scores without it, as transformers
    /// has it (Moonshot's remote code adds the bias in place and so mixes biased scores).
    Sigmoid {
        /// Added to the scores for the choice alone, one an expert.
        correction: ParamId,
        /// Whether the weights of the chosen are divided by their sum.
        renormalise: bool,
        /// Added to that sum.
        sum_eps: f64,
        /// Factor on the weights.
        scale: f64,
    },
}
