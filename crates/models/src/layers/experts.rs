use super::GatedMlp;
use crate::params::{ParamId, Projection};

/// Routed experts: `sum over the chosen of weight_e expert_e(x)`.
#[derive(Debug, Clone)]
pub struct Experts {
    /// One logit an expert.
    pub router: Projection,
    /// How logits become a choice and weights.
    pub score: Score,
    /// Experts that a token passes.
    pub per_token: usize,
    /// The experts.
    pub experts: Vec<Expert>,
}

/// One expert.
pub type Expert = GatedMlp;

/// How a router's logits become a choice of k experts and their weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Score {
    /// The k largest logits, softmax over these.
    SoftmaxOfChosen,
    /// Sigmoid scores. The choice is by score plus a correction bias; weights are the scores without it, as transformers
    /// has it (Moonshot's remote code adds the bias in place and so mixes biased scores).
    Sigmoid {
        /// Added to the scores for the choice alone, one an expert.
        correction: ParamId,
        /// Whether the weights of the chosen are divided by their sum (plus 1e-20).
        renormalise: bool,
        /// Factor on the weights.
        scale: f64,
    },
}
