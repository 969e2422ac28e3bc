use crate::SubmitError;
use crate::job::Sequence;

/// The limits of what a service accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceLimits {
    /// Sequences that run at the same time: the engine's slots.
    pub sequences: usize,
    /// Sequences that may wait for a slot.
    pub queued: usize,
    /// Tokens of a sequence, prompt and generated tokens together.
    pub tokens: usize,
    /// Size of the model's vocabulary.
    pub vocabulary: usize,
    /// Maximum number of alternatives that are returned with log-probabilities.
    pub logprobs: usize,
}

impl ServiceLimits {
    /// Sequences that may be open at the same time, running or waiting.
    pub fn open(&self) -> usize {
        self.sequences.saturating_add(self.queued)
    }

    /// Refuses more sequences or longer prompts than the service ever accepts. Called before the sequences are made.
    ///
    /// # Errors
    /// [`SubmitError::Invalid`] or [`SubmitError::TooLong`].
    pub fn check_size(&self, sequences: usize, longest: usize) -> Result<(), SubmitError> {
        let refuse = |what: String| Err(SubmitError::Invalid { what });
        let (open, tokens) = (self.open(), self.tokens);
        if sequences > open {
            return refuse(format!(
                "{sequences} sequences in one request exceed the limit of {open}"
            ));
        }
        if longest >= tokens {
            return Err(SubmitError::TooLong {
                what: format!(
                    "the prompt has {longest} tokens, the limit of prompt and generated tokens is {tokens}: this model's maximum context length is {tokens} tokens"
                ),
            });
        }
        Ok(())
    }

    /// Refuses texts that cannot be embedded. Nothing is generated, so a text may fill the context.
    pub(crate) fn check_texts(&self, texts: &[Vec<u32>]) -> Result<(), SubmitError> {
        let refuse = |what: String| Err(SubmitError::Invalid { what });
        if texts.is_empty() {
            return refuse("the request has no text to embed".to_owned());
        }
        for text in texts {
            let (count, most) = (text.len(), self.tokens);
            if count == 0 {
                return refuse("a text has no tokens".to_owned());
            }
            if count > most {
                return Err(SubmitError::TooLong {
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

    /// Refuses sequences that could never run, no matter how long they wait.
    pub(crate) fn check(&self, sequences: &[Sequence]) -> Result<(), SubmitError> {
        let refuse = |what: String| Err(SubmitError::Invalid { what });
        if sequences.is_empty() {
            return refuse("the request has no prompt".to_owned());
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
                return Err(SubmitError::TooLong {
                    what: format!(
                        "{prompt} prompt tokens and {added} tokens to generate exceed the limit of {most}: this model's maximum context length is {most} tokens"
                    ),
                });
            }
            if let Some(asked) = logprobs.filter(|asked| *asked > self.logprobs) {
                let most = self.logprobs;
                return refuse(format!(
                    "log-probabilities of {asked} tokens were requested, the limit is {most}"
                ));
            }
        }
        Ok(())
    }
}
