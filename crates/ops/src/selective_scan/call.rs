//! The typed call of `selective_scan`: a field for each tensor and option.

use super::SelectiveScanOp;
use crate::op::call_tensors;
use crate::{CallTensors, Key, OpError, Options, Settings, States, Tensor, Typed};

/// Options of a `selective_scan` call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelectiveScanOptions {
    /// Whether softplus is applied to step sizes.
    pub delta_softplus: bool,
}

impl Default for SelectiveScanOptions {
    fn default() -> Self {
        Self { delta_softplus: true }
    }
}

impl Options for SelectiveScanOptions {
    fn read(settings: &Settings) -> Result<Self, OpError> {
        let given = settings.bool("selective_scan", "delta_softplus")?;
        Ok(given.map_or_else(Self::default, |delta_softplus| Self { delta_softplus }))
    }

    fn key(&self, key: &mut Key) {
        key.word(u64::from(self.delta_softplus));
    }
}

/// `h <- exp(dt A) h + dt u B, y = h C + D u` of each channel.
#[derive(Debug, Clone, Copy)]
pub struct SelectiveScanCall<'a> {
    /// Tokens by channel `[B, T, E]` or packed `[total, E]`.
    pub u: &'a Tensor,
    /// Raw step sizes `[B, T, E]`.
    pub delta: &'a Tensor,
    /// Rates of each channel's states `[E, N]`.
    pub a: &'a Tensor,
    /// Input projections `[B, T, G, N]`.
    pub b: &'a Tensor,
    /// Output projections `[B, T, G, N]`.
    pub c: &'a Tensor,
    /// Skip weight `[E]`.
    pub d: Option<&'a Tensor>,
    /// Gate `[B, T, E]`.
    pub z: Option<&'a Tensor>,
    /// Added to delta before the softplus `[E]`.
    pub delta_bias: Option<&'a Tensor>,
    /// Offsets of packed sequences `[sequences + 1]`, i32.
    pub offsets: Option<&'a Tensor>,
    /// States `[sequences, E, N]`, or a pool `[slots, E, N]`.
    pub states: States<'a>,
    /// Options.
    pub options: SelectiveScanOptions,
    /// Output y on a GPU, shaped like u.
    pub o: Option<&'a Tensor>,
}

impl Typed for SelectiveScanCall<'_> {
    type Family = SelectiveScanOp;

    fn call_tensors(&self) -> CallTensors<'_, SelectiveScanOp> {
        let mut given = call_tensors!(SelectiveScanOp, self.options, {
            "u": self.u,
            "delta": self.delta,
            "A": self.a,
            "B": self.b,
            "C": self.c,
            "D": self.d,
            "z": self.z,
            "delta_bias": self.delta_bias,
            "cu_seqlens": self.offsets,
        } -> { "o": self.o });
        given.states(&self.states);
        given
    }
}
