use crate::{Bound, TokenLogprobs, TokenRules};
use models::{Ended, Pooling, Request};
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
    /// Whether each token comes with its log probability, and with so many of the likeliest.
    pub logprobs: Option<usize>,
    /// Whether the tokens of its prompt have these too.
    pub score_prompt: bool,
    /// What it has to keep to.
    pub guide: Option<Bound>,
    /// Which tokens it may have besides.
    pub rules: TokenRules,
}

/// What became of a sequence, by its place in the submission.
#[derive(Debug, Clone, PartialEq)]
pub enum Update {
    /// It has a slot; the first thing that is told of it.
    Begun {
        /// The sequence.
        index: usize,
        /// Tokens of its prompt that a kept state had read.
        cached: usize,
    },
    /// The tokens of its prompt have their log-probabilities, before any token is chosen.
    Prompt {
        /// The sequence.
        index: usize,
        /// Of each token but the first.
        logprobs: Vec<TokenLogprobs>,
    },
    /// A token was chosen.
    Token {
        /// The sequence.
        index: usize,
        /// The token.
        token: u32,
        /// How likely it was, where that was asked for.
        logprobs: Option<TokenLogprobs>,
    },
    /// A text was embedded.
    Embedded {
        /// The text.
        index: usize,
        /// Its vector.
        values: Vec<f32>,
    },
    /// It ended as it should.
    Finished {
        /// The sequence.
        index: usize,
        /// Why.
        ended: Ended,
    },
    /// It cannot go on.
    Failed {
        /// The sequence.
        index: usize,
        /// Why.
        why: Why,
    },
}

/// Why a sequence cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// The engine's words.
    #[error("{0}")]
    Engine(String),
    /// The form that it is bound to could not be kept to: in llguidance's words.
    #[error("the answer's form: {0}")]
    Form(String),
    /// The server stops, and does not wait any longer.
    #[error("the server is shutting down")]
    Aborted,
}

/// A submission that was taken. Dropping it cancels all of its sequences.
#[derive(Debug)]
pub struct Ticket {
    pub(crate) updates: mpsc::Receiver<Update>,
    pub(crate) enough: Vec<Arc<AtomicBool>>,
    pub(crate) arrived: Instant,
}

impl Ticket {
    /// The next update; none once all sequences have ended, or the engine's thread is gone.
    pub async fn next(&mut self) -> Option<Update> {
        self.updates.recv().await
    }

    /// The same for who polls.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Update>> {
        self.updates.poll_recv(context)
    }

    /// Ends a sequence that has all that was wanted of it: a stop string came. Updates of it may still come, which were made
    /// before it was known.
    pub fn enough(&self, index: usize) {
        if let Some(enough) = self.enough.get(index) {
            enough.store(true, Ordering::Relaxed);
        }
    }

    /// When it was taken.
    pub fn arrived(&self) -> Instant {
        self.arrived
    }
}

/// A sequence on its way to the engine's thread.
pub(crate) struct Job {
    pub(crate) index: usize,
    pub(crate) sequence: Sequence,
    pub(crate) updates: mpsc::Sender<Update>,
    pub(crate) enough: Arc<AtomicBool>,
    pub(crate) arrived: Instant,
    /// Its place among those that may be open; free again when this is dropped.
    pub(crate) _place: OwnedSemaphorePermit,
}

/// Texts to be embedded, on their way to the engine's thread.
pub(crate) struct EmbeddingJob {
    /// The tokens of each.
    pub(crate) texts: Vec<Vec<u32>>,
    pub(crate) pooling: Pooling,
    pub(crate) updates: mpsc::Sender<Update>,
    /// The place of all of them among the sequences that may be open.
    pub(crate) place: OwnedSemaphorePermit,
}

/// What the engine's thread is told.
pub(crate) enum Command {
    Submit(Vec<Job>),
    Embed(EmbeddingJob),
    /// Something was changed that it looks at between steps.
    Wake,
}
