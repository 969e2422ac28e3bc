use crate::Refusal;
use crate::job::Sequence;

/// What a service takes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Sequences at once: the engine's slots.
    pub sequences: usize,
    /// Sequences that may wait for a slot.
    pub queued: usize,
    /// Tokens of a sequence, prompt and continuation.
    pub tokens: usize,
    /// Token ids that the model has.
    pub vocabulary: usize,
    /// Most of the likeliest tokens whose probabilities are told beside the chosen one's.
    pub logprobs: usize,
}

impl Limits {
    /// Sequences that are open at once, running or waiting.
    pub fn open(&self) -> usize {
        self.sequences.saturating_add(self.queued)
    }

    /// Refuses more sequences, or longer prompts, than are ever taken: to be asked before so many are made.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] or [`Refusal::TooLong`].
    pub fn check_size(&self, sequences: usize, longest: usize) -> Result<(), Refusal> {
        let refuse = |what: String| Err(Refusal::Invalid { what });
        let (open, tokens) = (self.open(), self.tokens);
        if sequences > open {
            return refuse(format!(
                "{sequences} sequences were asked for at once, wanted at most {open}"
            ));
        }
        if longest >= tokens {
            return Err(Refusal::TooLong {
                what: format!(
                    "a prompt has {longest} tokens, the server takes {tokens} with what is added: this model's maximum context length is {tokens} tokens"
                ),
            });
        }
        Ok(())
    }

    /// Refuses texts that cannot be embedded: nothing is added to them, so that they may fill the context.
    pub(crate) fn check_texts(&self, texts: &[Vec<u32>]) -> Result<(), Refusal> {
        let refuse = |what: String| Err(Refusal::Invalid { what });
        if texts.is_empty() {
            return refuse("there is nothing to embed".to_owned());
        }
        for text in texts {
            let (count, most) = (text.len(), self.tokens);
            if count == 0 {
                return refuse("a text has no tokens".to_owned());
            }
            if count > most {
                return Err(Refusal::TooLong {
                    what: format!(
                        "a text has {count} tokens: this model's maximum context length is {most} tokens"
                    ),
                });
            }
            if let Some(token) = text.iter().find(|id| **id as usize >= self.vocabulary) {
                let vocabulary = self.vocabulary;
                return refuse(format!(
                    "token {token} is beyond the model's vocabulary of {vocabulary}"
                ));
            }
        }
        Ok(())
    }

    /// Refuses what could never run, however long it waited.
    pub(crate) fn check(&self, sequences: &[Sequence]) -> Result<(), Refusal> {
        let refuse = |what: String| Err(Refusal::Invalid { what });
        if sequences.is_empty() {
            return refuse("there is nothing to continue".to_owned());
        }
        let longest = sequences.iter().map(|sequence| sequence.request.prompt.len()).max();
        self.check_size(sequences.len(), longest.unwrap_or(0))?;
        for Sequence { request, logprobs, .. } in sequences {
            let prompt = request.prompt.len();
            if prompt == 0 {
                return refuse("the prompt has no tokens".to_owned());
            }
            request.sampling.check().or_else(|error| refuse(error.to_string()))?;
            let biased = request.sampling.logit_bias.iter().map(|(token, _)| token);
            let mut tokens = request.prompt.iter().chain(biased);
            if let Some(token) = tokens.find(|id| **id as usize >= self.vocabulary) {
                let vocabulary = self.vocabulary;
                return refuse(format!(
                    "token {token} is beyond the model's vocabulary of {vocabulary}"
                ));
            }
            let tokens = prompt.saturating_add(request.limit);
            if tokens > self.tokens {
                let (added, most) = (request.limit, self.tokens);
                return Err(Refusal::TooLong {
                    what: format!(
                        "a prompt of {prompt} tokens and {added} to add are {tokens}, the server takes {most} together: this model's maximum context length is {most} tokens"
                    ),
                });
            }
            if let Some(asked) = logprobs.filter(|asked| *asked > self.logprobs) {
                let most = self.logprobs;
                return refuse(format!(
                    "log probabilities of {asked} tokens, wanted at most {most}"
                ));
            }
        }
        Ok(())
    }
}
