//! The typed call of `gated_delta`: a field for each tensor and option.

use super::GatedDeltaOp;
use crate::op::call_tensors;
use crate::{CallTensors, Key, OpError, Options, Settings, States, Tensor, Typed};

const OP: &str = "gated_delta";

/// Options of a `gated_delta` call.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GatedDeltaOptions {
    /// Factor of the queries; K^-1/2 if `None`.
    pub scale: Option<f64>,
    /// Whether queries and keys are L2-normalised.
    pub l2norm: bool,
    /// Whether beta = 2 sigmoid(logit); an error without `a_log`.
    pub allow_neg_eigval: Option<bool>,
}

impl Options for GatedDeltaOptions {
    fn read(settings: &Settings) -> Result<Self, OpError> {
        Ok(Self {
            scale: settings.number(OP, "scale")?,
            l2norm: settings.bool(OP, "l2norm")?.unwrap_or(false),
            allow_neg_eigval: settings.bool(OP, "allow_neg_eigval")?,
        })
    }

    fn key(&self, key: &mut Key) {
        key.maybe(self.scale);
        key.word(u64::from(self.l2norm));
        key.word(self.allow_neg_eigval.map_or(0, |allowed| u64::from(allowed) + 1));
    }
}

/// The delta rule with one decay per value head.
#[derive(Debug, Clone, Copy)]
pub struct GatedDeltaCall<'a> {
    /// Queries `[B, T, H, K]` or packed `[total, H, K]`.
    pub q: &'a Tensor,
    /// Keys, like q.
    pub k: &'a Tensor,
    /// Values `[B, T, HV, V]`.
    pub v: &'a Tensor,
    /// Log decay `[B, T, HV]`, or gate logits with `a_log`.
    pub g: &'a Tensor,
    /// Write strength `[B, T, HV]`, or its logits with `a_log`.
    pub beta: &'a Tensor,
    /// Log of the gate's rate `[HV]`.
    pub a_log: Option<&'a Tensor>,
    /// Added to the gate logits `[HV]`.
    pub dt_bias: Option<&'a Tensor>,
    /// Offsets of packed sequences `[sequences + 1]`, i32.
    pub offsets: Option<&'a Tensor>,
    /// States `[sequences, HV, K, V]`, or a pool `[slots, HV, K, V]`.
    pub states: States<'a>,
    /// Options.
    pub options: GatedDeltaOptions,
    /// Output on a GPU `[B, T, HV, V]`. It must not overlap an input: inputs are still read while it is written.
    pub o: Option<&'a Tensor>,
}

impl Typed for GatedDeltaCall<'_> {
    type Family = GatedDeltaOp;

    fn call_tensors(&self) -> CallTensors<'_, GatedDeltaOp> {
        let mut given = call_tensors!(GatedDeltaOp, self.options, {
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
