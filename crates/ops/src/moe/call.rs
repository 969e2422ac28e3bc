//! The typed call of `moe`: a field for each tensor and option.

use super::problem::{ACTIVATIONS, SCORES};
use super::{Clamp, MoeOp, Score};
use crate::linear::SCALED;
use crate::op::call_tensors;
use crate::{CallTensors, Key, OpError, Options, Settings, Tensor, Typed};

const OP: &str = "moe";

/// Epsilon that most models add to the sum of a token's sigmoid scores.
pub const SUM_EPS: f64 = 1e-20;

/// Options of a `moe` call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MoeOptions {
    /// Routed experts per token, 1 to E; `None` is an error.
    pub top_k: Option<usize>,
    /// SwiGLU experts, `silu(gate) * up`; squared ReLU without gates if false.
    pub gated: bool,
    /// Clamped SwiGLU (gpt-oss); requires `biases`.
    pub clamp: Option<Clamp>,
    /// Scoring function of the router.
    pub score: Score,
    /// Added to the sum that renormalises sigmoid scores: [`SUM_EPS`] in most models.
    pub sum_eps: f64,
    /// Factor of the router weights (`routed_scaling_factor`).
    pub weight_scale: f64,
    /// Factor of the sum over experts.
    pub scale: f64,
    /// Group size of quantized weights with group scales, in columns: a multiple of 32.
    pub w_group: usize,
    /// First expert of this rank under expert parallelism; `None` if the weights of all experts are given.
    pub experts_first: Option<usize>,
    /// Shared experts, stored after the E routed ones; every token takes them with weight 1. 0 if `experts_first` is set.
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

/// Mixture of experts: the weighted sum of the routed experts of each token.
#[derive(Debug, Clone, Copy)]
pub struct MoeCall<'a> {
    /// Tokens, normalised already `[T, H]`.
    pub x: &'a Tensor,
    /// The router's logits `[T, E]`, f32.
    pub logits: &'a Tensor,
    /// Added to sigmoid scores for the top-k choice, not to the weights `[E]`, f32.
    pub correction: Option<&'a Tensor>,
    /// Gate and up projections: I rows of gates, then I of ups `[L, 2I, H]`; ups only `[L, I, H]` without gates. L is E +
    /// [`MoeOptions::always`], or the local experts with [`MoeOptions::experts_first`].
    pub w_gate_up: &'a Tensor,
    /// Down projections `[L, H, I]`.
    pub w_down: &'a Tensor,
    /// Scales of quantized weights: of w_gate_up `[L, G, 2I]` and of w_down `[L, G, H]`, f32.
    pub scales: Option<[&'a Tensor; 2]>,
    /// Offsets of u4 weights, shaped like `scales`: a weight is scale * w - offset.
    pub offsets: Option<[&'a Tensor; 2]>,
    /// Biases of w_gate_up `[L, 2I]` and of w_down `[L, H]`, f32: required by [`MoeOptions::clamp`].
    pub biases: Option<[&'a Tensor; 2]>,
    /// Residual `[T, H]`, f32.
    pub residual: Option<&'a Tensor>,
    /// Options.
    pub options: MoeOptions,
    /// Output on a GPU `[T, H]`; f32 with a residual.
    pub o: Option<&'a Tensor>,
}

impl Typed for MoeCall<'_> {
    type Family = MoeOp;

    fn call_tensors(&self) -> CallTensors<'_, MoeOp> {
        call_tensors!(MoeOp, self.options, {
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
