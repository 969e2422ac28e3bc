use std::time::Instant;

/// The phases of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServicePhase {
    /// The engine is being built.
    Loading,
    /// Requests are accepted.
    Ready,
    /// No new requests are accepted; open ones continue.
    Draining,
    /// All requests have ended and the engine is dropped.
    Stopped,
    /// The engine could not be built or its device is lost: the error's message. This phase is final.
    Failed(String),
}

impl ServicePhase {
    /// The phase's name in lower case.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
            Self::Failed(_) => "failed",
        }
    }

    /// Whether the engine's thread has ended.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Stopped | Self::Failed(_))
    }
}

/// The health of a service.
#[derive(Debug, Clone)]
pub struct ServiceHealth {
    /// The current phase.
    pub phase: ServicePhase,
    /// Engine steps that failed.
    pub failed_steps: u64,
    /// The message of the last failure and when it happened.
    pub last_error: Option<(String, Instant)>,
    /// Sequences that have a slot.
    pub running: usize,
    /// Sequences that wait for a slot.
    pub waiting: usize,
    /// Free slots.
    pub free_slots: usize,
    /// States of prompt prefixes in slots.
    pub snapshots: usize,
    /// Capacity for such states.
    pub max_snapshots: usize,
    /// States of prompt prefixes in host memory; some are in a slot as well.
    pub saved_snapshots: usize,
    /// Bytes of host memory used by these states and by preempted requests.
    pub swapped_bytes: u64,
    /// Capacity of host memory for both, in bytes.
    pub swap_space: u64,
    /// Free blocks of the KV cache.
    pub free_blocks: usize,
    /// Blocks of the KV cache.
    pub blocks: usize,
    /// Prompt tokens of all requests.
    pub prompt_tokens: u64,
    /// Prompt tokens of all requests that were in the prefix cache.
    pub cached_tokens: u64,
    /// Generated tokens of all requests.
    pub generation_tokens: u64,
    /// When the service started.
    pub since: Instant,
}
