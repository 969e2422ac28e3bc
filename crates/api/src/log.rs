//! What a server says of itself while it runs.

use serde::Serialize;
use std::sync::Arc;

/// One line of a log.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Record {
    /// The model is there; requests are taken.
    Ready {
        /// Seconds from the start of the server until then.
        seconds: f64,
    },
    /// No more requests are taken.
    Draining {
        /// Sequences that are open.
        open: usize,
    },
    /// The time for draining is over.
    Aborted {
        /// Sequences that were open.
        open: usize,
    },
    /// A request was answered, refused, or left by its client.
    Request(RequestRecord),
}

/// What became of a request.
#[derive(Debug, Clone, Serialize)]
pub struct RequestRecord {
    /// As in the answer, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The method and the path.
    pub route: String,
    /// The status that was sent; 499 where the client was gone before the end.
    pub status: u16,
    /// Tokens of all prompts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<usize>,
    /// Tokens of these that the prefix cache had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<usize>,
    /// Tokens of all answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<usize>,
    /// Milliseconds to the first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_token_ms: Option<f64>,
    /// Milliseconds to the end.
    pub total_ms: f64,
    /// What was wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Where lines of the log go. It must not wait: the caller answers requests.
pub type Log = Arc<dyn Fn(Record) + Send + Sync>;
