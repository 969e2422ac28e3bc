use crate::{GrammarGuide, TokenLogprobs, TokenRules};
use models::{FinishReason, PoolingMode, Request};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// A sequence to continue.
#[derive(Clone)]
pub struct Sequence {
    /// The scheduler's request.
    pub request: Request,
    /// `Some(n)` returns each token's log-probability and those of the `n` most likely tokens.
    pub logprobs: Option<usize>,
    /// Whether log-probabilities of the prompt's tokens are returned as well.
    pub score_prompt: bool,
    /// The grammar that constrains it.
    pub guide: Option<GrammarGuide>,
    /// Tokens that are allowed, independent of the grammar.
    pub rules: TokenRules,
}

/// An event of a sequence, which is named by its index in the submission.
#[derive(Debug, Clone, PartialEq)]
pub enum Update {
    /// The sequence has a slot. This is its first update.
    Started {
        /// The sequence.
        index: usize,
        /// Tokens of its prompt that were in the prefix cache.
        cached: usize,
    },
    /// Log-probabilities of the prompt's tokens, sent before the first sampled token.
    Prompt {
        /// The sequence.
        index: usize,
        /// One for each token except the first.
        logprobs: Vec<TokenLogprobs>,
    },
    /// A token was sampled.
    Token {
        /// The sequence.
        index: usize,
        /// The token.
        token: u32,
        /// Its log-probability, if requested.
        logprobs: Option<TokenLogprobs>,
    },
    /// A text was embedded.
    Embedded {
        /// The text.
        index: usize,
        /// Its embedding.
        values: Vec<f32>,
    },
    /// The sequence finished.
    Finished {
        /// The sequence.
        index: usize,
        /// The reason.
        ended: FinishReason,
    },
    /// The sequence failed.
    Failed {
        /// The sequence.
        index: usize,
        /// The error.
        why: SequenceError,
    },
}

/// The reason why a sequence failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// The engine's message.
    #[error("{0}")]
    Engine(String),
    /// The grammar cannot be continued: llguidance's message.
    #[error("the answer cannot be continued under its grammar: {0}")]
    StructuredOutput(String),
    /// The server stops without waiting for open sequences.
    #[error("the server is shutting down")]
    Aborted,
}

/// An accepted submission. Dropping it cancels all of its sequences.
#[derive(Debug)]
pub struct Ticket {
    pub(crate) updates: mpsc::Receiver<Update>,
    pub(crate) stop: Vec<Arc<AtomicBool>>,
    pub(crate) arrived: Instant,
}

impl Ticket {
    /// The next update; `None` once all sequences have ended or the engine's thread has stopped.
    pub async fn next(&mut self) -> Option<Update> {
        self.updates.recv().await
    }

    /// [`Ticket::next`] for callers that poll.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Update>> {
        self.updates.poll_recv(context)
    }

    /// Finishes a sequence early, for example after a stop string. Updates that were already sent still arrive.
    pub fn stop(&self, index: usize) {
        if let Some(stop) = self.stop.get(index) {
            stop.store(true, Ordering::Relaxed);
        }
    }

    /// When the submission was accepted.
    pub fn arrived(&self) -> Instant {
        self.arrived
    }
}

/// A sequence in the queue to the engine's thread.
pub(crate) struct Job {
    pub(crate) index: usize,
    pub(crate) sequence: Sequence,
    pub(crate) updates: mpsc::Sender<Update>,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) arrived: Instant,
    /// Its permit among the sequences that may be open; dropping it releases the permit.
    pub(crate) _permit: OwnedSemaphorePermit,
}

/// Texts to embed, in the queue to the engine's thread.
pub(crate) struct EmbeddingJob {
    /// The tokens of each text.
    pub(crate) texts: Vec<Vec<u32>>,
    pub(crate) pooling: PoolingMode,
    pub(crate) updates: mpsc::Sender<Update>,
    /// One permit for all texts.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// A message to the engine's thread.
pub(crate) enum Command {
    Submit(Vec<Job>),
    Embed(EmbeddingJob),
    /// A flag changed that the thread reads between steps.
    Wake,
}
