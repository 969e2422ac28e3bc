//! The typed call of `kda`: a field for each tensor and option.

use super::KdaOp;
use super::problem::GATES;
use crate::op::call_tensors;
use crate::{CallTensors, Key, OpError, Options, Settings, States, Tensor, Typed};

const OP: &str = "kda";

/// How gate logits become log decays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GateKind {
    /// `-exp(A_log) softplus(g + dt_bias)`.
    #[default]
    Plain,
    /// `lower_bound sigmoid(exp(A_log) (g + dt_bias))`.
    Safe,
}

impl GateKind {
    pub(super) fn as_str(self) -> &'static str {
        GATES[self as usize]
    }
}

/// Options of a `kda` call.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KdaOptions {
    /// How gate logits become log decays; an error without `a_log`.
    pub gate: Option<GateKind>,
    /// The smallest log decay of the safe gate, below 0; -5 if `None`.
    pub lower_bound: Option<f64>,
    /// Factor of the queries; K^-1/2 if `None`.
    pub scale: Option<f64>,
    /// Whether queries and keys are L2-normalised.
    pub l2norm: bool,
    /// Whether beta = 2 sigmoid(logit); an error without `a_log`.
    pub allow_neg_eigval: Option<bool>,
}

impl Options for KdaOptions {
    fn read(settings: &Settings) -> Result<Self, OpError> {
        let gate = settings.choice(OP, "gate", &GATES)?;
        Ok(Self {
            gate: gate.map(|gate| match gate {
                "safe" => GateKind::Safe,
                _ => GateKind::Plain,
            }),
            lower_bound: settings.number(OP, "lower_bound")?,
            scale: settings.number(OP, "scale")?,
            l2norm: settings.bool(OP, "l2norm")?.unwrap_or(false),
            allow_neg_eigval: settings.bool(OP, "allow_neg_eigval")?,
        })
    }

    fn key(&self, key: &mut Key) {
        key.word(self.gate.map_or(0, |gate| gate as u64 + 1));
        key.maybe(self.lower_bound);
        key.maybe(self.scale);
        key.word(u64::from(self.l2norm));
        key.word(self.allow_neg_eigval.map_or(0, |allowed| u64::from(allowed) + 1));
    }
}

/// The delta rule with one decay per key channel.
#[derive(Debug, Clone, Copy)]
pub struct KdaCall<'a> {
    /// Queries `[B, T, H, K]` or packed `[total, H, K]`.
    pub q: &'a Tensor,
    /// Keys, like q.
    pub k: &'a Tensor,
    /// Values `[B, T, HV, V]`.
    pub v: &'a Tensor,
    /// Log decay `[B, T, HV, K]`, or gate logits with `a_log`.
    pub g: &'a Tensor,
    /// Write strength `[B, T, HV]`, or its logits with `a_log`.
    pub beta: &'a Tensor,
    /// Log of the gate's rate `[HV]`.
    pub a_log: Option<&'a Tensor>,
    /// Added to the gate logits `[HV, K]`.
    pub dt_bias: Option<&'a Tensor>,
    /// Offsets of packed sequences `[sequences + 1]`, i32.
    pub offsets: Option<&'a Tensor>,
    /// States `[sequences, HV, K, V]`, or a pool `[slots, HV, K, V]`.
    pub states: States<'a>,
    /// Options.
    pub options: KdaOptions,
    /// Output on a GPU `[B, T, HV, V]`.
    pub o: Option<&'a Tensor>,
}

impl Typed for KdaCall<'_> {
    type Family = KdaOp;

    fn call_tensors(&self) -> CallTensors<'_, KdaOp> {
        let mut given = call_tensors!(KdaOp, self.options, {
            "q": self.q,
            "k": self.k,
            "v": self.v,
            "g": self.g,
            "beta": self.beta,
            "A_log": self.a_log,
            "dt_bias": self.dt_bias,
            "cu_seqlens": self.offsets,
        } -> { "o": self.o });
        given.states(&self.states);
        given
    }
}
