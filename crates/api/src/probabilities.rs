//! Log probabilities, as chat and text completions give them.

use models::Tokenizer;
use serde_json::{Map, Value, json};
use serving::TokenLogprobs;

/// A token, how likely it was, and where its text begins in the answer, in characters.
#[derive(Debug, Clone)]
pub(crate) struct Chance {
    pub(crate) token: u32,
    pub(crate) logprobs: TokenLogprobs,
    pub(crate) offset: usize,
}

/// The least that is told: JSON has no infinity. vLLM's too.
fn told(logprob: f32) -> f64 {
    f64::from(logprob).max(-9999.0)
}

/// For `choices[].logprobs` of a chat.
pub(crate) fn of_chat(chances: &[Chance], tokenizer: &Tokenizer) -> Value {
    let entry = |token: u32, logprob: f32| {
        let bytes = tokenizer.bytes(token).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        json!({ "token": text, "logprob": told(logprob), "bytes": bytes })
    };
    let content = chances.iter().map(|Chance { token, logprobs, .. }| {
        let mut own = entry(*token, logprobs.chosen);
        let likeliest = logprobs.likeliest.iter();
        own["top_logprobs"] = likeliest.map(|(token, logprob)| entry(*token, *logprob)).collect();
        own
    });
    json!({ "content": content.collect::<Vec<_>>() })
}

/// For `choices[].logprobs` of a text completion. There a token is a key: one that is no whole character is spelled by its
/// bytes, as OpenAI does, so that two of them stay two.
pub(crate) fn of_completion(chances: &[Chance], tokenizer: &Tokenizer) -> Value {
    let spelled = |token: u32| {
        let bytes = tokenizer.bytes(token).unwrap_or_default();
        String::from_utf8(bytes).unwrap_or_else(|error| {
            let bytes = error.into_bytes();
            let hex: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("bytes:{hex}")
        })
    };
    let likeliest = |Chance { token, logprobs, .. }: &Chance| {
        let all = logprobs.likeliest.iter().copied().chain([(*token, logprobs.chosen)]);
        all.map(|(token, logprob)| (spelled(token), json!(told(logprob)))).collect::<Map<_, _>>()
    };
    json!({
        "tokens": chances.iter().map(|chance| spelled(chance.token)).collect::<Vec<_>>(),
        "token_logprobs": chances.iter().map(|chance| told(chance.logprobs.chosen)).collect::<Vec<_>>(),
        "top_logprobs": chances.iter().map(likeliest).collect::<Vec<_>>(),
        "text_offset": chances.iter().map(|chance| chance.offset).collect::<Vec<_>>(),
    })
}
