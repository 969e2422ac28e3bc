//! Log-probabilities of prompt tokens; the logits stay on the GPU.

use super::decode::{integers, values};
use super::sampling_inputs::SamplingInputs;
use super::{CudaEngine, failed};
use crate::engine::{Batch, LogitsSelection};
use crate::logprobs::{self, TokenLogprobs};
use crate::{ModelError, Sampling};
use ops::sampling::{SamplingCall, SamplingOptions};
use ops::{DType, OpError, Tensor};

impl CudaEngine {
    /// Advances a batch and returns, after each of its tokens, the log-probability of the target token.
    pub(super) fn score_tokens(
        &mut self,
        batch: &Batch,
        tokens: &[u32],
        count: usize,
    ) -> Result<Vec<TokenLogprobs>, ModelError> {
        let logits = self.logits(batch, LogitsSelection::Every)?;
        self.logprobs_of(&logits, tokens, count).map_err(failed)
    }

    fn logprobs_of(
        &self,
        logits: &Tensor,
        tokens: &[u32],
        count: usize,
    ) -> Result<Vec<TokenLogprobs>, OpError> {
        let (rows, vocabulary, stream) = (tokens.len(), logits.shape()[1], &self.stream);
        let (masks, greedy) = (logprobs::masks_of(tokens, vocabulary), Sampling::default());
        let choices = logprobs::choices(&masks, &greedy);
        let chooser = SamplingInputs::now(&choices, &vec![0; rows], vocabulary, stream)?;
        let top = logprobs::likeliest(vocabulary);
        let zeros = |shape: &[usize], dtype| Tensor::zeros(stream, shape, dtype);
        let (token, logprob) = (zeros(&[rows], DType::I32)?, zeros(&[rows], DType::F32)?);
        let (tops, top_logprobs) =
            (zeros(&[rows, top], DType::I32)?, zeros(&[rows, top], DType::F32)?);
        let call = SamplingCall {
            options: SamplingOptions { top_logprobs: top },
            logprob: Some(&logprob),
            top_tokens: Some(&tops),
            top_logprobs: Some(&top_logprobs),
            ..chooser.call(logits, None, &token)
        };
        self.plans.borrow_mut().enqueue(&call, &self.device, stream)?;
        let [own, likeliest] = [values(&logprob, stream)?, values(&top_logprobs, stream)?];
        Ok(logprobs::rows(&own, &integers(&tops, stream)?, &likeliest, count))
    }
}
