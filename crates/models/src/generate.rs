//! Generation: many sequences at once, prompts in chunks beside others' decoding, tokens as they come.

use crate::{Batch, Engine, ModelError, Sampler, Sampling, Wanted};

/// One sequence to continue.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Tokens to begin with, at least one.
    pub prompt: Vec<u32>,
    /// Most tokens to add.
    pub limit: usize,
    /// How they are chosen.
    pub sampling: Sampling,
    /// Tokens that end it; the one that does is not given out.
    pub stop_ids: Vec<u32>,
}

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// A token of `stop_ids` was chosen.
    StopId,
    /// It has as many tokens as were asked for.
    Limit,
    /// The listener wanted no more.
    Listener,
}

/// A sequence that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// What was added to the prompt.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub ended: Ended,
}

/// A token that was chosen.
#[derive(Debug, Clone, Copy)]
pub struct Chosen<'a> {
    /// The index of its request.
    pub request: usize,
    /// The token.
    pub token: u32,
    /// What it was chosen from; none where the device chose by itself.
    pub logits: Option<&'a [f32]>,
}

/// How much an engine is given to do at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// Most tokens of a prompt in a step.
    pub chunk: usize,
    /// Most tokens that the device chooses by itself, where all sequences take the likeliest, before they are given out:
    /// 1 for none, so that each comes with its logits. The first two tokens of a sequence and the last that it may have come
    /// with theirs in any case.
    pub ahead: usize,
}

/// What a listener wants after a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// More of this sequence.
    More,
    /// No more of it: a stop string came, or nobody listens.
    End,
}

/// A sequence that runs, in the place of its request's index.
struct Running<'a> {
    request: &'a Request,
    sampler: Sampler,
    /// Tokens of the prompt that were given to the engine.
    fed: usize,
    tokens: Vec<u32>,
    ended: Option<Ended>,
}

impl Running<'_> {
    /// The tokens of its next step, of a prompt at most so many.
    fn next(&self, chunk: usize) -> &[u32] {
        match &self.request.prompt[self.fed..] {
            [] => &self.tokens[self.tokens.len().saturating_sub(1)..],
            left => &left[..left.len().min(chunk)],
        }
    }

    /// Tokens that the device may choose for it by itself.
    fn ahead(&self) -> usize {
        let decodes = self.fed == self.request.prompt.len() && self.tokens.len() > 1;
        if decodes && self.sampler.takes_the_likeliest() {
            self.request.limit - self.tokens.len() - 1
        } else {
            0
        }
    }

    /// Takes a token that was chosen for it.
    fn take(&mut self, chosen: Chosen<'_>, listen: &mut impl FnMut(Chosen<'_>) -> Next) {
        if self.request.stop_ids.contains(&chosen.token) {
            self.ended = Some(Ended::StopId);
            return;
        }
        self.tokens.push(chosen.token);
        if listen(chosen) == Next::End {
            self.ended = Some(Ended::Listener);
        } else if self.tokens.len() == self.request.limit {
            self.ended = Some(Ended::Limit);
        }
    }
}

/// Continues requests, each in a place of its own of an engine whose first places are free. A step takes the next tokens of
/// each prompt that is not read yet, and the last token of each sequence that runs. `listen` is given each token as it comes.
///
/// # Errors
/// [`ModelError`] when a request is empty or its settings mean nothing, and whatever a step says.
pub fn generate(
    engine: &mut dyn Engine,
    requests: &[Request],
    Steps { chunk, ahead }: Steps,
    mut listen: impl FnMut(Chosen<'_>) -> Next,
) -> Result<Vec<Generated>, ModelError> {
    let vocabulary = engine.architecture().vocabulary;
    let mut all = Vec::new();
    for (index, request) in requests.iter().enumerate() {
        if request.prompt.is_empty() {
            return Err(ModelError::Call(format!("prompt {index} has no tokens")));
        }
        if let Some(wrong) = request.sampling.wrong() {
            return Err(ModelError::Call(wrong));
        }
        let sampler = Sampler::new(request.sampling.clone(), vocabulary, &request.prompt);
        let ended = (request.limit == 0).then_some(Ended::Limit);
        all.push(Running { request, sampler, fed: 0, tokens: Vec::new(), ended });
    }
    loop {
        let open: Vec<usize> = (0..all.len()).filter(|index| all[*index].ended.is_none()).collect();
        if open.is_empty() {
            break;
        }
        let with = |batch: Batch, index: &usize| batch.with(*index, all[*index].next(chunk.max(1)));
        let batch = open.iter().fold(Batch::new(), with);
        let ahead = open.iter().fold(ahead, |least, index| least.min(all[*index].ahead()));
        if ahead > 1 {
            let chosen = engine.decode_greedy(&batch, ahead)?;
            for (index, tokens) in open.iter().zip(chosen) {
                for token in tokens {
                    let running = &mut all[*index];
                    // Behind its end a sequence has no more tokens, whatever the device went on with.
                    if running.ended.is_none() {
                        let chosen = Chosen { request: *index, token, logits: None };
                        running.take(chosen, &mut listen);
                    }
                }
            }
            free(engine, &all, &open);
            continue;
        }
        let logits = engine.step(&batch, Wanted::Last)?;
        for (index, logits) in open.iter().zip(logits.chunks_exact(vocabulary)) {
            let running = &mut all[*index];
            let prompt = running.request.prompt.len();
            running.fed = prompt.min(running.fed + chunk.max(1));
            if running.fed < prompt {
                continue;
            }
            let token = running.sampler.choose(logits);
            let chosen = Chosen { request: *index, token, logits: Some(logits) };
            running.take(chosen, &mut listen);
        }
        free(engine, &all, &open);
    }
    let ended = |running: Running<'_>| Generated {
        tokens: running.tokens,
        ended: running.ended.unwrap_or(Ended::Limit),
    };
    Ok(all.into_iter().map(ended).collect())
}

/// Forgets the sequences that have ended.
fn free(engine: &mut dyn Engine, all: &[Running<'_>], open: &[usize]) {
    for index in open.iter().filter(|index| all[**index].ended.is_some()) {
        engine.reset(*index);
    }
}
