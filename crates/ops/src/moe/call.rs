//! A call of `moe` in its own words.

use super::problem::{ACTIVATIONS, SCORES};
use super::{Clamp, MoeOp, Score};
use crate::linear::SCALED;
use crate::op::given;
use crate::{Given, Key, OpError, Options, Settings, Tensor, Typed};

const OP: &str = "moe";

/// What most models add to the sum of a token's sigmoids.
pub const SUM_EPS: f64 = 1e-20;

/// What a call says beside its tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MoeOptions {
    /// Experts of a token, 1 to E; a call without is an error.
    pub top_k: Option<usize>,
    /// Whether an expert has gates, `silu(gate) * up`; else ups are squared, those below 0 as 0.
    pub gated: bool,
    /// Limits of experts with biases, which they need.
    pub clamp: Option<Clamp>,
    /// How they are chosen and weighed.
    pub score: Score,
    /// Added to the sum that sigmoids are divided by: [`SUM_EPS`] in most models.
    pub sum_eps: f64,
    /// What weights are times.
    pub weight_scale: f64,
    /// What the sum over experts is times.
    pub scale: f64,
    /// Columns of narrow weights with a factor of their own, where a row has several: a multiple of 32.
    pub w_group: usize,
    /// The first of the experts whose weights are here, where those are not all.
    pub experts_first: Option<usize>,
    /// Experts behind those of the logits that every token takes as well, with weight 1; 0 beside `experts_first`.
    pub always: usize,
}

impl Options for MoeOptions {
    fn read(settings: &Settings) -> Result<Self, OpError> {
        let renormalise = settings.bool(OP, "renormalise")?.unwrap_or(true);
        let activation = settings.choice(OP, "activation", ACTIVATIONS)?;
        let [limit, alpha] = [settings.number(OP, "limit")?, settings.number(OP, "alpha")?];
        Ok(Self {
            top_k: settings.count(OP, "top_k")?,
            gated: activation != Some("relu_squared"),
            clamp: (activation == Some("clamped_swiglu"))
                .then(|| Clamp { limit: limit.unwrap_or(7.0), alpha: alpha.unwrap_or(1.702) }),
            score: match settings.choice(OP, "score", SCORES)? {
                Some("sigmoid") => Score::Sigmoid { renormalise },
                Some("softmax_of_all") => Score::SoftmaxOfAll,
                _ => Score::SoftmaxOfChosen,
            },
            sum_eps: settings.number(OP, "sum_eps")?.unwrap_or(SUM_EPS),
            weight_scale: settings.number(OP, "weight_scale")?.unwrap_or(1.0),
            scale: settings.number(OP, "scale")?.unwrap_or(1.0),
            w_group: settings.count(OP, "w_group")?.unwrap_or(SCALED),
            experts_first: settings.count(OP, "experts_first")?,
            always: settings.count(OP, "always")?.unwrap_or(0),
        })
    }

    fn key(&self, key: &mut Key) {
        key.count(self.top_k);
        key.word(match self.score {
            Score::SoftmaxOfChosen => 0,
            Score::Sigmoid { renormalise } => 1 + u64::from(renormalise),
            Score::SoftmaxOfAll => 3,
        });
        key.word(u64::from(self.gated));
        key.word(u64::from(self.clamp.is_some()));
        let Clamp { limit, alpha } = self.clamp.unwrap_or(Clamp { limit: 0.0, alpha: 0.0 });
        key.number(limit);
        key.number(alpha);
        key.number(self.sum_eps);
        key.number(self.weight_scale);
        key.number(self.scale);
        key.count(Some(self.w_group));
        key.count(self.experts_first);
        key.count(Some(self.always));
    }
}

/// The sum of what the experts that each token chooses make of it.
#[derive(Debug, Clone, Copy)]
pub struct MoeCall<'a> {
    /// Tokens, normalised already `[T, H]`.
    pub x: &'a Tensor,
    /// The router's logits `[T, E]`, f32.
    pub logits: &'a Tensor,
    /// Added to sigmoid scores for the choice alone `[E]`.
    pub correction: Option<&'a Tensor>,
    /// Of each expert I rows of gates, then I of ups `[L, 2I, H]`, or ups alone without gates `[L, I, H]`; L is E and
    /// [`MoeOptions::always`], unless [`MoeOptions::experts_first`] says which they are.
    pub w_gate_up: &'a Tensor,
    /// `[L, H, I]`.
    pub w_down: &'a Tensor,
    /// Factors of narrow weights, of w_gate_up `[L, G, 2I]` and w_down `[L, G, H]`, f32.
    pub scales: Option<[&'a Tensor; 2]>,
    /// What is subtracted from such weights in u4 behind the factor, shaped like `scales`.
    pub offsets: Option<[&'a Tensor; 2]>,
    /// Of gates and ups `[L, 2I]` and of what experts make `[L, H]`, f32: with [`MoeOptions::clamp`].
    pub biases: Option<[&'a Tensor; 2]>,
    /// `[T, H]`, f32.
    pub residual: Option<&'a Tensor>,
    /// Options.
    pub options: MoeOptions,
    /// Where the sum goes on a GPU.
    pub o: Option<&'a Tensor>,
}

impl Typed for MoeCall<'_> {
    type Family = MoeOp;

    fn given(&self) -> Given<'_, MoeOp> {
        given!(MoeOp, self.options, {
            "x": self.x,
            "logits": self.logits,
            "correction": self.correction,
            "w_gate_up": self.w_gate_up,
            "w_down": self.w_down,
            "gate_up_scale": self.scales.map(|[scale, _]| scale),
            "down_scale": self.scales.map(|[_, scale]| scale),
            "gate_up_offset": self.offsets.map(|[offset, _]| offset),
            "down_offset": self.offsets.map(|[_, offset]| offset),
            "gate_up_bias": self.biases.map(|[bias, _]| bias),
            "down_bias": self.biases.map(|[_, bias]| bias),
            "residual": self.residual,
        } -> { "o": self.o })
    }
}
