//! Log records of a running server.

use serde::Serialize;
use std::sync::Arc;

/// One line of a log.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Record {
    /// The model is loaded; requests are accepted.
    Ready {
        /// Seconds since the start of the server.
        seconds: f64,
    },
    /// New requests are refused.
    Draining {
        /// Open sequences.
        open: usize,
        /// Seconds that they have.
        seconds: u64,
    },
    /// The time limit for draining is over.
    Aborted {
        /// Sequences that were still open.
        open: usize,
    },
    /// A request was answered or refused, or its client disconnected.
    Request(RequestRecord),
}

/// The result of a request.
#[derive(Debug, Clone, Serialize)]
pub struct RequestRecord {
    /// The id in the answer, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The method and the path.
    pub route: String,
    /// The status sent; 499 if the client disconnected early.
    pub status: u16,
    /// Tokens of all prompts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<usize>,
    /// Prompt tokens that the prefix cache had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<usize>,
    /// Tokens of all answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<usize>,
    /// Milliseconds to the first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_token_ms: Option<f64>,
    /// Milliseconds to the end of the request.
    pub total_ms: f64,
    /// The error message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Receives log records. It must not block: the caller serves requests.
pub type Log = Arc<dyn Fn(Record) + Send + Sync>;
