//! Log-probabilities of given tokens and of the most likely ones, computed by the op `sampling`: it returns that of the
//! chosen token, which is the only one that the mask allows.

use crate::choice::{Choice, Lists, mask_words, masks};
use crate::{ModelError, Sampling};
use device::Device;
use ops::sampling::{CONTROLS, MAX_TOP_LOGPROBS, SamplingCall, SamplingOptions};
use ops::{Tensor, TensorMap, Typed};

/// The log-probability of a token, and the most likely tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The natural logarithm of the token's probability.
    pub chosen: f32,
    /// The most likely tokens with their log-probabilities, in descending order; on ties the lower token id first.
    pub likeliest: Vec<(u32, f32)>,
}

/// Number of most likely tokens requested from the op. GPUs have a built-in kernel for this number.
pub(crate) fn likeliest(vocabulary: usize) -> usize {
    MAX_TOP_LOGPROBS.min(vocabulary)
}

/// A mask for each token that allows only that token.
pub(crate) fn masks_of(tokens: &[u32], vocabulary: usize) -> Vec<Vec<u32>> {
    let mask = |token: &u32| {
        let mut mask = vec![0; mask_words(vocabulary)];
        if let Some(word) = mask.get_mut(*token as usize / 32) {
            *word = 1 << (token % 32);
        }
        mask
    };
    tokens.iter().map(mask).collect()
}

/// Choices with these masks, which return the log-probabilities.
pub(crate) fn choices<'a>(masks: &'a [Vec<u32>], greedy: &'a Sampling) -> Vec<Option<Choice<'a>>> {
    let choice = |mask: &'a Vec<u32>| Choice { mask: Some(mask), ..Choice::by(greedy) };
    masks.iter().map(choice).map(Some).collect()
}

/// The op's outputs by row, with `count` of the most likely tokens.
pub(crate) fn rows(
    logprobs: &[f32],
    top_tokens: &[i32],
    top_logprobs: &[f32],
    count: usize,
) -> Vec<TokenLogprobs> {
    let top = top_tokens.len() / logprobs.len().max(1);
    let tops = top_tokens.chunks(top.max(1)).zip(top_logprobs.chunks(top.max(1)));
    let row = |(chosen, (tokens, logprobs)): (&f32, (&[i32], &[f32]))| TokenLogprobs {
        chosen: *chosen,
        likeliest: tokens
            .iter()
            .zip(logprobs)
            .filter_map(|(token, logprob)| Some((u32::try_from(*token).ok()?, *logprob)))
            .take(count)
            .collect(),
    };
    logprobs.iter().zip(tops).map(row).collect()
}

/// The log-probability of a token for each row of logits in host memory `[tokens, vocabulary]`.
pub(crate) fn on_host(
    device: &Device,
    logits: Vec<f32>,
    tokens: &[u32],
    count: usize,
) -> Result<Vec<TokenLogprobs>, ModelError> {
    let number = tokens.len();
    let vocabulary = logits.len() / number.max(1);
    let (allowed, greedy) = (masks_of(tokens, vocabulary), Sampling::default());
    let choices = choices(&allowed, &greedy);
    let lists = Lists::of(choices.iter().map(Option::as_ref));
    let mask = masks(choices.iter().map(Option::as_ref), vocabulary).unwrap_or_default();
    let call = SamplingCall {
        logits: &Tensor::new(&[number, vocabulary], logits),
        controls: &Tensor::new(&[number, CONTROLS], lists.controls),
        top_k: &Tensor::new(&[number], lists.top_k),
        seed: &Tensor::new(&[number, 2], lists.seed),
        draw: &Tensor::new(&[number], lists.draw),
        mask: Some(&Tensor::new(&[number, mask_words(vocabulary)], mask)),
        counts: None,
        slots: None,
        options: SamplingOptions { top_logprobs: likeliest(vocabulary) },
        token: None,
        logprob: None,
        top_tokens: None,
        top_logprobs: None,
    };
    let mut outputs = TensorMap::new();
    call.run(device, &mut outputs).map_err(|error| ModelError::Device(error.to_string()))?;
    let floats = |name| outputs.get(name).and_then(Tensor::view::<f32>).unwrap_or_default();
    let top_tokens = outputs.get("top_tokens").and_then(Tensor::view::<i32>).unwrap_or_default();
    Ok(rows(floats("logprob"), top_tokens, floats("top_logprobs"), count))
}
