//! A call of `conv1d` in its own words.

use super::problem::{ACTIVATIONS, LAYOUTS};
use super::{Activation, Conv1dOp, Layout};
use crate::op::given;
use crate::{Given, Key, OpError, Options, Settings, States, Tensor, Typed};

const OP: &str = "conv1d";

/// What a call says beside its tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Conv1dOptions {
    /// What is applied to the sums.
    pub activation: Activation,
    /// Order of x and o.
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
    /// Where each packed sequence begins `[sequences + 1]`.
    pub offsets: Option<&'a Tensor>,
    /// The S >= W - 1 tokens before `[sequences, C, S]`, or pools of them.
    pub states: States<'a>,
    /// Tokens seen so far of each sequence, where its state is a ring `[sequences]`.
    pub positions: Option<&'a Tensor>,
    /// Options.
    pub options: Conv1dOptions,
    /// Where y goes on a GPU.
    pub o: Option<&'a Tensor>,
}

impl Typed for Conv1dCall<'_> {
    type Family = Conv1dOp;

    fn given(&self) -> Given<'_, Conv1dOp> {
        let mut given = given!(Conv1dOp, self.options, {
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
