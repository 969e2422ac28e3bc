use super::{Ended, RequestId};

/// What happened to a request in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
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
    /// It gave its slot and its pages to older requests, and waits for its turn. No token is lost: what it had is read again.
    Preempted {
        /// The request.
        request: RequestId,
    },
}

impl Event {
    /// The request.
    pub fn request(&self) -> RequestId {
        match self {
            Self::Token { request, .. }
            | Self::Finished { request, .. }
            | Self::Preempted { request } => *request,
        }
    }
}

/// Logits of the step that was just made: [`super::Scheduler::logits`] has them until the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logits(pub(super) usize);
