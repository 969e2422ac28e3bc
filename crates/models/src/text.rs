//! Text to token ids and back, and conversations to text.

mod stop_ids;
mod template;
pub(crate) mod tiktoken;
mod tokenizer;

pub use stop_ids::stop_ids;
pub use template::{ChatTemplate, Conversation, Json, Message, call_arguments};
pub use tokenizer::{HeldTokens, TextStream, Tokenizer};
