//! A call of `gated_delta` in its own words.

use super::GatedDeltaOp;
use crate::op::given;
use crate::{Given, Key, OpError, Options, Settings, States, Tensor, Typed};

const OP: &str = "gated_delta";

/// What a call says beside its tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GatedDeltaOptions {
    /// Factor on the queries; K^-1/2 where it is none.
    pub scale: Option<f64>,
    /// Whether queries and keys are normalised.
    pub l2norm: bool,
    /// Whether the write strength is twice the sigmoid of its logit; for calls with an `A_log` alone.
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
    /// Log decay `[B, T, HV]`, or gate logits beside an `a_log`.
    pub g: &'a Tensor,
    /// Write strength `[B, T, HV]`, or its logits beside an `a_log`.
    pub beta: &'a Tensor,
    /// Log of the gate's rate `[HV]`.
    pub a_log: Option<&'a Tensor>,
    /// Added to the gate logits `[HV]`.
    pub dt_bias: Option<&'a Tensor>,
    /// Where each packed sequence begins `[sequences + 1]`.
    pub offsets: Option<&'a Tensor>,
    /// States `[sequences, HV, K, V]`, or pools of them.
    pub states: States<'a>,
    /// Options.
    pub options: GatedDeltaOptions,
    /// Where the output goes on a GPU: memory of its own, for inputs are still read while it is written.
    pub o: Option<&'a Tensor>,
}

impl Typed for GatedDeltaCall<'_> {
    type Family = GatedDeltaOp;

    fn given(&self) -> Given<'_, GatedDeltaOp> {
        let mut given = given!(GatedDeltaOp, self.options, {
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
