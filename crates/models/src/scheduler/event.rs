use super::{FinishReason, RequestId};

/// An event of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchedulerEvent {
    /// It has a slot: for the first time, or again after preemption.
    Begun {
        /// The request.
        request: RequestId,
        /// Tokens that need no prefill, because a kept sequence, a snapshot or its own copy has them.
        reused: usize,
        /// Whether these come from host memory.
        from_host: bool,
        /// Tokens of a longer common prefix with an earlier prompt whose state is not cached.
        lost: usize,
    },
    /// The log-probabilities of its prompt are complete; [`super::Scheduler::take_scores`] returns them.
    Scored {
        /// The request.
        request: RequestId,
    },
    /// A token was sampled.
    Token {
        /// The request.
        request: RequestId,
        /// The token.
        token: u32,
        /// Its logits, if requested.
        logits: Option<Logits>,
    },
    /// It ended and was removed.
    Finished {
        /// The request.
        request: RequestId,
        /// The reason.
        ended: FinishReason,
    },
    /// A text was embedded or failed: [`super::Scheduler::take_embedding`] has the result.
    Embedded {
        /// The text.
        request: RequestId,
    },
    /// It was preempted in favour of older requests and waits. No token is lost.
    Preempted {
        /// The request.
        request: RequestId,
        /// Whether its state was saved to host memory; otherwise its tokens are recomputed.
        saved: bool,
    },
}

impl SchedulerEvent {
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

/// Logits of the last step: [`super::Scheduler::logits`] returns them until the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logits(pub(super) usize);
