//! Tokenization, detokenization and chat templates.

mod bounds;
mod detokenizer;
mod stop_ids;
mod template;
pub(crate) mod tiktoken;
mod tokenizer;

pub(crate) use stop_ids::ends_answers;
pub use stop_ids::stop_ids;
pub use template::{
    ChatMessage, ChatTemplate, Conversation, Json, MAX_CONCURRENT_RENDERS, TemplateProcess,
    call_arguments, render_templates,
};
pub use tokenizer::{Encoded, TextStream, Tokenizer};
