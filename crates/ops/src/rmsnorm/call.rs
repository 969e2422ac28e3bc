//! The typed call of `rmsnorm`: a field for each tensor and option.

use super::problem::{ACTIVATIONS, OUTPUT_TYPES};
use super::{Activation, RmsNormOp};
use crate::op::call_tensors;
use crate::{CallTensors, DType, Key, OpError, Options, Settings, Tensor, Typed};

const OP: &str = "rmsnorm";

/// Options of an `rmsnorm` call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RmsNormOptions {
    /// Activation of the gate.
    pub activation: Activation,
    /// Whether the gate multiplies the normalised values; otherwise it multiplies x before the norm.
    pub norm_before_gate: bool,
    /// Added to the mean square; above 0.
    pub eps: f64,
    /// Type of o; that of x if `None`.
    pub out: Option<DType>,
}

impl Default for RmsNormOptions {
    fn default() -> Self {
        Self { activation: Activation::Silu, norm_before_gate: false, eps: 1e-5, out: None }
    }
}

impl Options for RmsNormOptions {
    fn read(settings: &Settings) -> Result<Self, OpError> {
        Ok(Self {
            activation: match settings.choice(OP, "activation", ACTIVATIONS)? {
                Some("sigmoid") => Activation::Sigmoid,
                _ => Activation::Silu,
            },
            norm_before_gate: settings.bool(OP, "norm_before_gate")?.unwrap_or(false),
            eps: settings.number(OP, "eps")?.unwrap_or(1e-5),
            out: settings.choice(OP, "out", OUTPUT_TYPES)?.map(|out| match out {
                "bf16" => DType::Bf16,
                _ => DType::F16,
            }),
        })
    }

    fn key(&self, key: &mut Key) {
        key.word(self.activation as u64);
        key.word(u64::from(self.norm_before_gate));
        key.number(self.eps);
        key.dtype(self.out);
    }
}

/// `y = x / sqrt(mean x^2 + eps) * weight`, plain or gated.
#[derive(Debug, Clone, Copy)]
pub struct RmsNormCall<'a> {
    /// G groups of D channels of each token `[B, T, G, D]`.
    pub x: &'a Tensor,
    /// Gate `[B, T, G, D]`.
    pub gate: Option<&'a Tensor>,
    /// Weight `[D]` or `[G, D]`; 1 if `None`.
    pub weight: Option<&'a Tensor>,
    /// Options.
    pub options: RmsNormOptions,
    /// Output y on a GPU `[B, T, G, D]`.
    pub o: Option<&'a Tensor>,
}

impl Typed for RmsNormCall<'_> {
    type Family = RmsNormOp;

    fn call_tensors(&self) -> CallTensors<'_, RmsNormOp> {
        call_tensors!(RmsNormOp, self.options, {
            "x": self.x,
            "gate": self.gate,
            "weight": self.weight,
        } -> { "o": self.o })
    }
}
