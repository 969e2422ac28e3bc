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
    /// Weights that one token passes: all but those of the experts it does not choose, and the embedding, of which it
    /// reads a row, unless that is the head too.
    pub fn weights_per_token(&self) -> u64 {
        let size = |projection: &Projection| (projection.outputs() * projection.inputs) as u64;
        let idle = |experts: &Experts| {
            let of = |expert: &GatedMlp| size(&expert.gate_up) + size(&expert.down);
            let all: u64 = experts.experts.iter().map(of).sum();
            // Experts of a layer are equally large.
            all / experts.experts.len() as u64 * (experts.experts.len() - experts.per_token) as u64
        };
        let idle: u64 =
            self.layers.iter().filter_map(|layer| layer.experts.as_ref()).map(idle).sum();
        let tied = self.head.rows.iter().any(|rows| rows.param == self.embedding);
        let embedding = if tied { 0 } else { self.params.get(self.embedding).len() as u64 };
        self.params.count() - idle - embedding
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
