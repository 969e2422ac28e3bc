//! The typed call of `sampling`: a field for each tensor and option.

use super::SamplingOp;
use crate::op::call_tensors;
use crate::{CallTensors, Key, OpError, Options, Settings, Tensor, Typed};

const OP: &str = "sampling";

/// Options of a `sampling` call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SamplingOptions {
    /// Number of most probable tokens to return with their log-probabilities, at most 20.
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
    /// `[R]`, i32; 0 disables top-k.
    pub top_k: &'a Tensor,
    /// `[R, 2]`, i32: low and high word.
    pub seed: &'a Tensor,
    /// `[R]`, i32: index of the draw in the seed's random stream.
    pub draw: &'a Tensor,
    /// `[R, ceil(V / 32)]`, i32: a bit per token, 0 forbids it.
    pub mask: Option<&'a Tensor>,
    /// `[S, V]`, i32: occurrences of each token, the sign bit if the prompt contains it.
    pub counts: Option<&'a Tensor>,
    /// `[R]`, i32: the row of `counts` for each row of logits, -1 for none.
    pub slots: Option<&'a Tensor>,
    /// Options.
    pub options: SamplingOptions,
    /// Chosen tokens on a GPU `[R]`, i32.
    pub token: Option<&'a Tensor>,
    /// Log-probabilities of the chosen tokens on a GPU `[R]`, f32, with `top_logprobs`.
    pub logprob: Option<&'a Tensor>,
    /// Most probable tokens on a GPU `[R, top_logprobs]`, i32.
    pub top_tokens: Option<&'a Tensor>,
    /// Log-probabilities of `top_tokens` on a GPU `[R, top_logprobs]`, f32.
    pub top_logprobs: Option<&'a Tensor>,
}

impl Typed for SamplingCall<'_> {
    type Family = SamplingOp;

    fn call_tensors(&self) -> CallTensors<'_, SamplingOp> {
        call_tensors!(SamplingOp, self.options, {
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
