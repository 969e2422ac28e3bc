//! Choosing the next tokens of sequences: the request to an engine and its result.

use crate::{Batch, Engine, LogitsSelection, ModelError, Sampling};
use device::Device;
use ops::sampling::{CONTROLS, IN_PROMPT, SamplingCall, SamplingOptions};
use ops::{Tensor, TensorMap, Typed};

/// Number of stop tokens that a device checks when it chooses several tokens in a row.
pub const MAX_STOPS: usize = 8;

/// How the next token of one sequence is chosen.
#[derive(Debug, Clone, Copy)]
pub struct Choice<'a> {
    /// The sampling parameters. With logit biases one token is chosen at a time.
    pub sampling: &'a Sampling,
    /// The sequence's prompt.
    pub prompt: &'a [u32],
    /// The generated tokens.
    pub added: &'a [u32],
    /// Bitmask of allowed tokens, 32 per word; `None` allows all. With a mask one token is chosen at a time.
    pub mask: Option<&'a [u32]>,
    /// Tokens that end the sequence: it is not advanced by them or by later tokens. With more than [`MAX_STOPS`], one
    /// token is chosen at a time.
    pub stop_ids: &'a [u32],
    /// Whether to return the model's logits. Then one token is chosen at a time.
    pub logits: bool,
}

impl Choice<'_> {
    /// A choice by sampling parameters only, without a history.
    pub fn by(sampling: &Sampling) -> Choice<'_> {
        Choice { sampling, prompt: &[], added: &[], mask: None, stop_ids: &[], logits: false }
    }

    /// Whether a token ends the sequence.
    fn ends(&self, token: Option<u32>) -> bool {
        token.is_some_and(|token| self.stop_ids.contains(&token))
    }

    /// Index of the random draw of the next token; each position of a sequence has its own.
    fn draw(&self) -> usize {
        (self.prompt.len() + self.added.len()).saturating_sub(1)
    }

    /// Adds the logit biases to a row of logits.
    fn add_bias(&self, logits: &mut [f32]) {
        for (token, bias) in &self.sampling.logit_bias {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit += bias;
            }
        }
    }

    /// Whether a device can choose several tokens of the sequence in a row.
    pub(crate) fn is_free(&self) -> bool {
        self.mask.is_none() && !self.logits && self.sampling.logit_bias.is_empty()
    }

    /// Counts occurrences of each token, as the op `sampling` expects them.
    pub(crate) fn counts(&self, more: &[Option<u32>], counts: &mut [i32]) {
        for token in self.prompt {
            counts[*token as usize] |= IN_PROMPT;
        }
        for token in self.added.iter().copied().chain(more.iter().copied().flatten()) {
            counts[token as usize] += 1;
        }
    }
}

/// The tokens chosen for one sequence.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SampledTokens {
    /// One token per step, up to the one that ends the sequence. `None` if no token can be chosen because a logit is
    /// NaN or the mask allows no token.
    pub tokens: Vec<Option<u32>>,
    /// The logits that the first token was chosen from, if requested.
    pub logits: Option<Vec<f32>>,
}

/// A token as the op returns it.
pub(crate) fn token(word: i32) -> Option<u32> {
    u32::try_from(word).ok()
}

/// Inputs of the op with a few values per row.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    /// `[rows, 6]`.
    pub(crate) controls: Vec<f32>,
    /// `[rows]`.
    pub(crate) top_k: Vec<i32>,
    /// `[rows, 2]`.
    pub(crate) seed: Vec<i32>,
    /// `[rows]`.
    pub(crate) draw: Vec<i32>,
    /// `[rows, MAX_STOPS]`, padded with -1.
    pub(crate) stops: Vec<i32>,
}

impl Lists {
    /// The lists of some rows; rows without a choice take the most likely token.
    pub(crate) fn of<'a>(rows: impl Iterator<Item = Option<&'a Choice<'a>>>) -> Self {
        let mut lists = Self::default();
        let plain = Sampling::default();
        for row in rows {
            let sampling = row.map_or(&plain, |row| row.sampling);
            let controls: [f64; CONTROLS] = [
                sampling.temperature,
                sampling.top_p,
                sampling.min_p,
                sampling.repetition_penalty,
                sampling.presence_penalty,
                sampling.frequency_penalty,
            ];
            lists.controls.extend(controls.map(|number| number as f32));
            // A `top_k` above the vocabulary size means all tokens.
            let top_k = sampling.top_k.unwrap_or(0);
            lists.top_k.push(i32::try_from(top_k).unwrap_or(0));
            let words = [sampling.seed as u32, (sampling.seed >> 32) as u32];
            lists.seed.extend(words.map(u32::cast_signed));
            lists.draw.push(row.map_or(0, |row| row.draw() as i32));
            let stops = row.map_or(&[][..], |row| row.stop_ids).iter();
            let stops = stops.map(|token| token.cast_signed()).chain(std::iter::repeat(-1));
            lists.stops.extend(stops.take(MAX_STOPS));
        }
        lists
    }
}

/// Number of words of a mask for a vocabulary.
pub(crate) fn mask_words(vocabulary: usize) -> usize {
    vocabulary.div_ceil(32)
}

/// The masks of all rows, concatenated; `None` if no row has one.
pub(crate) fn masks<'a>(
    rows: impl Iterator<Item = Option<&'a Choice<'a>>> + Clone,
    vocabulary: usize,
) -> Option<Vec<i32>> {
    let mask = |row: Option<&'a Choice<'a>>| row.and_then(|row| row.mask);
    rows.clone().any(|row| mask(row).is_some()).then(|| {
        let words = |row| match mask(row) {
            Some(mask) => mask.iter().map(|word| word.cast_signed()).collect(),
            None => vec![-1; mask_words(vocabulary)],
        };
        rows.flat_map(words).collect()
    })
}

/// Chooses from logits in host memory `[active rows, vocabulary]`, given the tokens chosen before.
fn on_host(
    device: &Device,
    logits: &[f32],
    (going, how): (&[usize], &[Option<Choice<'_>>]),
    drawn: &mut [SampledTokens],
) -> Result<(), ModelError> {
    let rows: Vec<usize> = going.iter().copied().filter(|row| how[*row].is_some()).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let vocabulary = logits.len() / going.len();
    // Rows keep their order.
    let row_of =
        |row: usize| &logits[going.partition_point(|of| *of < row) * vocabulary..][..vocabulary];
    let choices = || rows.iter().map(|row| how[*row].as_ref());
    let mut lists = Lists::of(choices());
    for (draw, row) in lists.draw.iter_mut().zip(&rows) {
        *draw += drawn[*row].tokens.len() as i32;
    }
    let count = rows.len();
    let mut given: Vec<f32> = rows.iter().flat_map(|row| row_of(*row)).copied().collect();
    for (choice, logits) in choices().flatten().zip(given.chunks_exact_mut(vocabulary)) {
        choice.add_bias(logits);
    }
    let given = Tensor::new(&[count, vocabulary], given);
    let penalises = choices().flatten().any(|choice| choice.sampling.penalises());
    let counts = penalises.then(|| {
        let mut counts = vec![0; count * vocabulary];
        for (row, counts) in rows.iter().zip(counts.chunks_exact_mut(vocabulary)) {
            if let Some(choice) = &how[*row] {
                choice.counts(&drawn[*row].tokens, counts);
            }
        }
        Tensor::new(&[count, vocabulary], counts)
    });
    let masks = masks(choices(), vocabulary);
    let masks = masks.map(|words| Tensor::new(&[count, mask_words(vocabulary)], words));
    let call = SamplingCall {
        logits: &given,
        controls: &Tensor::new(&[count, CONTROLS], lists.controls),
        top_k: &Tensor::new(&[count], lists.top_k),
        seed: &Tensor::new(&[count, 2], lists.seed),
        draw: &Tensor::new(&[count], lists.draw),
        mask: masks.as_ref(),
        counts: counts.as_ref(),
        slots: None,
        options: SamplingOptions::default(),
        token: None,
        logprob: None,
        top_tokens: None,
        top_logprobs: None,
    };
    let mut outputs = TensorMap::new();
    call.run(device, &mut outputs).map_err(|error| ModelError::Device(error.to_string()))?;
    let tokens = outputs.get("token").and_then(Tensor::view::<i32>).unwrap_or_default();
    for (row, word) in rows.iter().zip(tokens) {
        drawn[*row].tokens.push(token(*word));
        let wanted = how[*row].as_ref().is_some_and(|choice| choice.logits);
        if wanted && drawn[*row].logits.is_none() {
            drawn[*row].logits = Some(row_of(*row).to_vec());
        }
    }
    Ok(())
}

/// [`Engine::choose`] by calls of [`Engine::step`]: tokens are chosen on the host.
///
/// # Errors
/// As [`Engine::step`].
pub fn choose_by_steps<E: Engine + ?Sized>(
    engine: &mut E,
    batch: &Batch,
    how: &[Option<Choice<'_>>],
    count: usize,
) -> Result<Vec<SampledTokens>, ModelError> {
    let mut drawn = vec![SampledTokens::default(); batch.sequences.len()];
    let mut going: Vec<usize> = (0..drawn.len()).collect();
    let mut next = batch.clone();
    for step in 0..count {
        if step > 0 {
            // A finished sequence is advanced by some token, because its row is part of the batch.
            let last = |row: usize| drawn[row].tokens.last().copied().flatten();
            let ended = |row: usize| how[row].is_some_and(|how| how.ends(last(row)));
            going.retain(|row| !ended(*row));
            next = Batch::new();
            for row in &going {
                next.add(batch.sequences[*row], [last(*row).unwrap_or(0)]);
            }
        }
        if next.is_empty() {
            break;
        }
        let logits = engine.step(&next, LogitsSelection::Last)?;
        on_host(engine.device(), &logits, (&going, how), &mut drawn)?;
    }
    Ok(drawn)
}
