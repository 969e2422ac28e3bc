//! A call of `sampling` in its own words.

use super::SamplingOp;
use crate::op::given;
use crate::{Given, Key, OpError, Options, Settings, Tensor, Typed};

const OP: &str = "sampling";

/// What a call says beside its tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SamplingOptions {
    /// How many of the likeliest tokens to give with their log-probabilities.
    pub top_logprobs: usize,
}

impl Options for SamplingOptions {
    fn read(settings: &Settings) -> Result<Self, OpError> {
        Ok(Self { top_logprobs: settings.count(OP, "top_logprobs")?.unwrap_or(0) })
    }

    fn key(&self, key: &mut Key) {
        key.word(self.top_logprobs as u64);
    }
}

/// The next token of each row of logits.
#[derive(Debug, Clone, Copy)]
pub struct SamplingCall<'a> {
    /// `[R, V]`, f32.
    pub logits: &'a Tensor,
    /// `[R, 6]`, f32: temperature, top-p, min-p, repetition, presence and frequency penalty.
    pub controls: &'a Tensor,
    /// `[R]`, i32; 0 for all.
    pub top_k: &'a Tensor,
    /// `[R, 2]`, i32: low and high word.
    pub seed: &'a Tensor,
    /// `[R]`, i32: which draw of the seed's.
    pub draw: &'a Tensor,
    /// `[R, ceil(V / 32)]`, i32: a bit a token.
    pub mask: Option<&'a Tensor>,
    /// `[S, V]`, i32: how often each token was there.
    pub counts: Option<&'a Tensor>,
    /// `[R]`, i32: the row of `counts` of each row.
    pub slots: Option<&'a Tensor>,
    /// Options.
    pub options: SamplingOptions,
    /// Where the tokens go on a GPU.
    pub token: Option<&'a Tensor>,
    /// Where their log-probabilities go on a GPU, with `top_logprobs`.
    pub logprob: Option<&'a Tensor>,
    /// Where the likeliest tokens go on a GPU, likewise.
    pub top_tokens: Option<&'a Tensor>,
    /// Where the log-probabilities of these go on a GPU, likewise.
    pub top_logprobs: Option<&'a Tensor>,
}

impl Typed for SamplingCall<'_> {
    type Family = SamplingOp;

    fn given(&self) -> Given<'_, SamplingOp> {
        given!(SamplingOp, self.options, {
            "logits": self.logits,
            "controls": self.controls,
            "top_k": self.top_k,
            "seed": self.seed,
            "draw": self.draw,
            "mask": self.mask,
            "counts": self.counts,
            "slots": self.slots,
        } -> {
            "token": self.token,
            "logprob": self.logprob,
            "top_tokens": self.top_tokens,
            "top_logprobs": self.top_logprobs,
        })
    }
}
