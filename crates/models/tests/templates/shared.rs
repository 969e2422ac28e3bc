//! Shared by both tests.

use super::snippets;
use models::{ChatMessage, ChatTemplate, Conversation, Json};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Seed of the generated conversations.
pub(crate) const SEED: u64 = 21;
pub(crate) const COUNT: usize = 200;

/// The templates in this repository.
pub(crate) const HERE: [(&str, &str); 2] = [
    // IBM's granite-4.0-h models, Apache-2.0; copied from llama-cpp-python 0.3.36 on 2026-11-23.
    ("ibm-granite-granite-4.0", include_str!("granite-4.0.jinja")),
    ("everything", include_str!("everything.jinja")),
];

/// transformers' output for them.
#[derive(Serialize, Deserialize)]
pub(crate) struct RecordedRenderings {
    pub(crate) transformers: String,
    pub(crate) jinja2: String,
    /// By template, the first digits of the hash of each conversation's text, separated by spaces; dashes if it was
    /// refused.
    pub(crate) rendered: BTreeMap<String, String>,
    pub(crate) snippets: Vec<(String, Option<String>)>,
}

pub(crate) fn recorded() -> RecordedRenderings {
    serde_json::from_str(include_str!("recorded.json")).unwrap()
}

/// A generated conversation.
#[derive(Deserialize)]
struct SampledTokens {
    messages: Vec<ChatMessage>,
    tools: Option<Vec<Json>>,
    documents: Option<Vec<Json>>,
    kwargs: Json,
    add_generation_prompt: bool,
}

fn conversation(text: &str) -> Conversation {
    let drawn: SampledTokens = serde_json::from_str(text).unwrap();
    Conversation {
        messages: drawn.messages,
        tools: drawn.tools,
        documents: drawn.documents,
        kwargs: drawn.kwargs.entries().unwrap(),
        add_generation_prompt: drawn.add_generation_prompt,
        ..Conversation::default()
    }
}

/// A template in a model's folder.
fn template(text: &str) -> ChatTemplate {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("chat_template.jinja", text);
    let tokens = r#"{"bos_token": "<s>", "eos_token": "</s>", "unk_token": {"content": "<unk>"}}"#;
    write("tokenizer_config.json", tokens);
    ChatTemplate::read(folder.path()).unwrap()
}

/// firstlight's output for conversations; `None` if refused.
pub(crate) fn rendered(text: &str, conversations: &[String]) -> Vec<Option<String>> {
    let template = template(text);
    conversations.iter().map(|text| template.render(&conversation(text)).ok()).collect()
}

pub(crate) fn snippet(text: &str) -> Result<String, String> {
    let given: Json = serde_json::from_str(snippets::GIVEN).unwrap();
    let conversation = Conversation {
        messages: vec![ChatMessage::new("user", "hi")],
        kwargs: given.entries().unwrap(),
        ..Conversation::default()
    };
    template(text).render(&conversation).map_err(|error| error.to_string())
}

pub(crate) fn digits(text: Option<&str>) -> String {
    let hash =
        |text| Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    text.map_or_else(|| "-".repeat(16), hash)
}
