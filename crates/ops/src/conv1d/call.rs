//! The typed call of `conv1d`: a field for each tensor and option.

use super::problem::{ACTIVATIONS, LAYOUTS};
use super::{Activation, Conv1dOp, Layout};
use crate::op::call_tensors;
use crate::{CallTensors, Key, OpError, Options, Settings, States, Tensor, Typed};

const OP: &str = "conv1d";

/// Options of a `conv1d` call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Conv1dOptions {
    /// Activation of the output.
    pub activation: Activation,
    /// Memory layout of x and o.
    pub layout: Layout,
}

impl Options for Conv1dOptions {
    fn read(settings: &Settings) -> Result<Self, OpError> {
        Ok(Self {
            layout: match settings.choice(OP, "layout", LAYOUTS)? {
                Some("channel_first") => Layout::ChannelFirst,
                _ => Layout::ChannelLast,
            },
            activation: match settings.choice(OP, "activation", ACTIVATIONS)? {
                Some("silu") => Activation::Silu,
                _ => Activation::None,
            },
        })
    }

    fn key(&self, key: &mut Key) {
        key.word(self.activation as u64);
        key.word(self.layout as u64);
    }
}

/// A depthwise causal convolution over tokens.
#[derive(Debug, Clone, Copy)]
pub struct Conv1dCall<'a> {
    /// Tokens `[B, T, C]`, packed `[total, C]`, or `[B, C, T]`.
    pub x: &'a Tensor,
    /// Taps `[C, W]`, the newest token last.
    pub weight: &'a Tensor,
    /// `[C]`.
    pub bias: Option<&'a Tensor>,
    /// Offsets of packed sequences `[sequences + 1]`, i32.
    pub offsets: Option<&'a Tensor>,
    /// The S >= W - 1 tokens before each sequence `[sequences, C, S]`, or a pool `[slots, C, S]`.
    pub states: States<'a>,
    /// Tokens seen so far of each sequence `[sequences]`, i32; its presence makes the states ring buffers.
    pub positions: Option<&'a Tensor>,
    /// Options.
    pub options: Conv1dOptions,
    /// Output y on a GPU, shaped like x.
    pub o: Option<&'a Tensor>,
}

impl Typed for Conv1dCall<'_> {
    type Family = Conv1dOp;

    fn call_tensors(&self) -> CallTensors<'_, Conv1dOp> {
        let mut given = call_tensors!(Conv1dOp, self.options, {
            "x": self.x,
            "weight": self.weight,
            "bias": self.bias,
            "cu_seqlens": self.offsets,
            "state_positions": self.positions,
        } -> { "o": self.o });
        given.states(&self.states);
        given
    }
}
