//! Log-probabilities in chat and text completions.

use models::Tokenizer;
use serde_json::{Map, Value, json};
use serving::TokenLogprobs;

/// A token, its log-probability, and the offset of its text in the answer, in characters. The first token of a prompt
/// has no log-probability.
#[derive(Debug, Clone)]
pub(crate) struct ScoredToken {
    pub(crate) token: u32,
    pub(crate) logprobs: Option<TokenLogprobs>,
    pub(crate) offset: usize,
    /// Whether it is the first token of the answer's text, which some tokenizers write without its leading space.
    pub(crate) first: bool,
}

/// The offsets of tokens in an answer's text.
#[derive(Debug, Default)]
pub(crate) struct Offsets {
    characters: usize,
    begun: bool,
}

impl Offsets {
    /// Adds a token, which is part of the text if `shown`.
    pub(crate) fn push(
        &mut self,
        tokenizer: &Tokenizer,
        token: u32,
        logprobs: Option<TokenLogprobs>,
        shown: bool,
    ) -> ScoredToken {
        let first = !self.begun;
        let bytes = if shown { bytes(tokenizer, token, first) } else { Vec::new() };
        let continues = |byte: &u8| byte & 0xc0 == 0x80;
        // A token inside a character has that character's offset.
        let inside = usize::from(bytes.first().is_some_and(continues));
        let offset = self.characters.saturating_sub(inside);
        self.characters += bytes.iter().filter(|byte| !continues(byte)).count();
        self.begun |= shown;
        ScoredToken { token, logprobs, offset, first }
    }
}

/// The bytes that a token adds to an answer's text.
fn bytes(tokenizer: &Tokenizer, token: u32, first: bool) -> Vec<u8> {
    let bytes = if first { tokenizer.first_bytes(token) } else { tokenizer.bytes(token) };
    bytes.unwrap_or_default()
}

/// The finite log-probability for JSON, which has no infinity; vLLM uses the same minimum.
fn finite(logprob: f32) -> f64 {
    f64::from(logprob).max(-9999.0)
}

/// For `choices[].logprobs` of a chat.
pub(crate) fn of_chat(chances: &[ScoredToken], tokenizer: &Tokenizer) -> Value {
    let entry = |token: u32, logprob: f32, first: bool| {
        let bytes = bytes(tokenizer, token, first);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        json!({ "token": text, "logprob": finite(logprob), "bytes": bytes })
    };
    let content = chances.iter().filter_map(|ScoredToken { token, logprobs, first, .. }| {
        let logprobs = logprobs.as_ref()?;
        let mut own = entry(*token, logprobs.chosen, *first);
        let likeliest = logprobs.likeliest.iter();
        own["top_logprobs"] =
            likeliest.map(|(token, logprob)| entry(*token, *logprob, *first)).collect();
        Some(own)
    });
    json!({ "content": content.collect::<Vec<_>>() })
}

/// For `choices[].logprobs` of a text completion. There a token is a key: one that is not a whole character is spelled
/// by its bytes, as OpenAI does, so that tokens stay distinct.
pub(crate) fn of_completion(chances: &[ScoredToken], tokenizer: &Tokenizer) -> Value {
    let spelled = |token: u32, first: bool| {
        let bytes = bytes(tokenizer, token, first);
        String::from_utf8(bytes).unwrap_or_else(|error| {
            let bytes = error.into_bytes();
            let hex: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("bytes:{hex}")
        })
    };
    let likeliest = |ScoredToken { token, logprobs, first, .. }: &ScoredToken| {
        let logprobs = logprobs.as_ref()?;
        let all = logprobs.likeliest.iter().copied().chain([(*token, logprobs.chosen)]);
        let all = all.map(|(token, logprob)| (spelled(token, *first), json!(finite(logprob))));
        Some(all.collect::<Map<_, _>>())
    };
    let own =
        |chance: &ScoredToken| chance.logprobs.as_ref().map(|logprobs| finite(logprobs.chosen));
    json!({
        "tokens": chances.iter().map(|chance| spelled(chance.token, chance.first)).collect::<Vec<_>>(),
        "token_logprobs": chances.iter().map(own).collect::<Vec<_>>(),
        "top_logprobs": chances.iter().map(likeliest).collect::<Vec<_>>(),
        "text_offset": chances.iter().map(|chance| chance.offset).collect::<Vec<_>>(),
    })
}
