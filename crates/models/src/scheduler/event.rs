use super::{Ended, RequestId};

/// What happened to a request in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It has a slot: for the first time, or again.
    Begun {
        /// The request.
        request: RequestId,
        /// Tokens that it need not read, because a kept sequence or another prompt began with them, or it had read them before.
        reused: usize,
        /// Whether these came from the host's memory.
        from_host: bool,
        /// Tokens beyond these that another prompt began with too, whose state is gone or was never kept.
        lost: usize,
    },
    /// All tokens of its prompt have their log-probabilities, which [`super::Scheduler::take_scores`] gives.
    Scored {
        /// The request.
        request: RequestId,
    },
    /// A token was chosen for it.
    Token {
        /// The request.
        request: RequestId,
        /// The token.
        token: u32,
        /// What it was chosen from, where the request wants it.
        logits: Option<Logits>,
    },
    /// It ended, and is forgotten.
    Finished {
        /// The request.
        request: RequestId,
        /// Why.
        ended: Ended,
    },
    /// A text was embedded, or cannot be: [`super::Scheduler::take_embedding`] has the result.
    Embedded {
        /// The text.
        request: RequestId,
    },
    /// It gave its slot and its pages to older requests, and waits for its turn. No token is lost.
    Preempted {
        /// The request.
        request: RequestId,
        /// Whether the host's memory has what it had read; else that is read again.
        saved: bool,
    },
}

impl Event {
    /// The request.
    pub fn request(&self) -> RequestId {
        match self {
            Self::Begun { request, .. }
            | Self::Scored { request }
            | Self::Token { request, .. }
            | Self::Finished { request, .. }
            | Self::Embedded { request }
            | Self::Preempted { request, .. } => *request,
        }
    }
}

/// Logits of the step that was just made: [`super::Scheduler::logits`] has them until the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logits(pub(super) usize);
