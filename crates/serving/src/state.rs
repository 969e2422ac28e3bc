use std::time::Instant;

/// What a service is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// The engine is being built.
    Loading,
    /// Requests are taken.
    Ready,
    /// No new requests are taken; those that are open go on.
    Draining,
    /// Every request has ended, and the engine is gone.
    Stopped,
    /// The engine could not be built, or its device is lost: in its words. Nothing will be answered again.
    Failed(String),
}

impl Phase {
    /// Its name.
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

/// How a service is.
#[derive(Debug, Clone)]
pub struct Health {
    /// What it is doing.
    pub phase: Phase,
    /// Steps of the engine that failed so far.
    pub failed_steps: u64,
    /// What the last of them said, and when.
    pub last_error: Option<(String, Instant)>,
    /// Sequences that have a slot.
    pub running: usize,
    /// Sequences that wait for one.
    pub waiting: usize,
    /// Sequences that could have a slot beside these.
    pub free_slots: usize,
    /// States behind beginnings of prompts that are kept.
    pub snapshots: usize,
    /// The most of them.
    pub most_snapshots: usize,
    /// Such states that the host's memory has, some of them too.
    pub saved_snapshots: usize,
    /// Bytes of the host's memory that these and preempted requests take.
    pub swapped_bytes: u64,
    /// The most of them.
    pub swap_space: u64,
    /// Blocks of the caches that nobody has.
    pub free_blocks: usize,
    /// Blocks of the caches.
    pub blocks: usize,
    /// Tokens of prompts that were read so far.
    pub prompt_tokens: u64,
    /// Of these, those that a kept state had read.
    pub cached_tokens: u64,
    /// Tokens that were given out so far.
    pub generation_tokens: u64,
    /// When the service was made.
    pub since: Instant,
}
