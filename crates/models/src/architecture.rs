//! A model as data: what a family makes of a config, and what an engine runs.

use crate::layers::{Attention, Experts, GatedMlp, Kda, LatentAttention, Mamba2};
use crate::params::{ParamId, Params, Projection};

/// A model's layers, in which every parameter has its name and shape and every multiplier its value. No backend is
/// assumed: an engine makes of it what suits its device.
#[derive(Debug, Clone)]
pub struct Architecture {
    /// The family it is of.
    pub family: &'static str,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of token ids.
    pub vocabulary: usize,
    /// Longest context the config promises, in tokens.
    pub context: usize,
    /// Epsilon of the norms.
    pub eps: f64,
    /// Every parameter.
    pub params: Params,
    /// `[vocabulary, hidden]`; a token's row is the first x.
    pub embedding: ParamId,
    /// Factor on the embedding.
    pub embedding_multiplier: f64,
    /// Factor on what each mixer and feed-forward part adds to x.
    pub residual_multiplier: f64,
    /// The layers.
    pub layers: Vec<Layer>,
    /// The last norm.
    pub norm: ParamId,
    /// `[vocabulary, hidden]`; the embedding again where they are tied.
    pub head: Projection,
    /// What the logits are divided by.
    pub logits_divisor: f64,
}

impl Architecture {
    /// Whether some layer chooses experts: where two are rated alike, rounding decides which of them a token passes.
    pub fn is_routed(&self) -> bool {
        self.layers.iter().any(|layer| layer.experts.is_some())
    }

    /// Whether the head is the embedding.
    pub fn is_tied(&self) -> bool {
        self.head.rows.iter().any(|rows| rows.param == self.embedding)
    }

    /// The same with the first layer of each kind alone: its mixer, and experts, a dense part or both behind it, with the
    /// same weights. It takes every path that the whole model takes, in a fraction of the time.
    ///
    /// Experts stay in the last of them that has any. Where two experts are rated alike, rounding decides which of them a
    /// token passes; what a later layer mixed of that would be told from an error no more.
    #[must_use]
    pub fn one_layer_of_each_kind(mut self) -> Self {
        let mut seen = Vec::new();
        self.layers.retain(|layer| {
            let parts = (layer.experts.is_some(), layer.mlp.is_some());
            let kind = (std::mem::discriminant(&layer.mixer), parts);
            let new = !seen.contains(&kind);
            seen.push(kind);
            new
        });
        let routed = self.layers.iter_mut().filter(|layer| layer.experts.is_some());
        routed.rev().skip(1).for_each(|layer| layer.experts = None);
        self
    }
}

/// `x += r mixer(rms(x)); h = rms(x); x += r (experts(h) + mlp(h))`.
#[derive(Debug, Clone)]
pub struct Layer {
    /// The norm before the mixer.
    pub input_norm: ParamId,
    /// What mixes tokens.
    pub mixer: Mixer,
    /// The norm before the feed-forward part.
    pub post_norm: ParamId,
    /// Routed experts.
    pub experts: Option<Experts>,
    /// What every token passes: the dense part, or the shared expert.
    pub mlp: Option<GatedMlp>,
}

/// What mixes tokens.
#[derive(Debug, Clone)]
pub enum Mixer {
    /// A state space layer.
    Mamba2(Mamba2),
    /// Softmax attention with grouped heads.
    Attention(Attention),
    /// Kimi Delta Attention.
    Kda(Kda),
    /// Softmax attention over a latent cache.
    Latent(LatentAttention),
}
