//! Incremental detokenization: the text of token ids as they arrive, equal to what `tokenizers` decodes from the whole
//! list.
//!
//! A tokenizer.json's decoder is a chain of steps from a list of tokens to a list of texts. Each step runs here as a
//! stream: it emits what no later token can change and buffers the rest, so the cost per token does not depend on the
//! text's length. Until a step joins its tokens to one text, steps process separate tokens ([`tokens`]); after it they
//! process a growing text ([`joined`]).

mod joined;
mod tokens;

use super::tiktoken;
use joined::TextStep;
use serde_json::Value;
use std::sync::Arc;
use tokenizers::{Decoder, DecoderWrapper};
use tokens::TokenStep;

/// A tokenizer's decoder as a chain of steps.
#[derive(Debug, Clone)]
pub(super) struct Chain {
    tokens: Vec<TokenStep>,
    join: Option<Join>,
    text: Vec<TextStep>,
}

/// How tokens are joined to one text.
#[derive(Debug, Clone)]
enum Join {
    /// By GPT-2's byte alphabet.
    Bytes(Incomplete),
    /// With a separator between tokens.
    With { separator: &'static str, begun: bool },
}

/// The bytes of an incomplete character at the end of a text.
#[derive(Debug, Clone, Default)]
struct Incomplete(Vec<u8>);

impl Incomplete {
    /// Adds bytes; returns the complete characters, with U+FFFD for invalid bytes as in `String::from_utf8_lossy`.
    fn push(&mut self, bytes: &[u8]) -> String {
        self.0.extend_from_slice(bytes);
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.0) {
                Ok(rest) => {
                    text.push_str(rest);
                    self.0.clear();
                    return text;
                }
                Err(error) => {
                    let valid = error.valid_up_to();
                    text.push_str(&String::from_utf8_lossy(&self.0[..valid]));
                    let Some(wrong) = error.error_len() else {
                        self.0.drain(..valid);
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    self.0.drain(..valid + wrong);
                }
            }
        }
    }

    fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.0)).into_owned()
    }
}

/// The bytes of a token in GPT-2's byte alphabet; the bytes of its text if it has other characters.
fn alphabet_bytes(token: &str) -> Vec<u8> {
    tiktoken::bytes_of(token).unwrap_or_else(|| token.as_bytes().to_vec())
}

impl Join {
    fn push(&mut self, token: &str) -> String {
        match self {
            Self::Bytes(incomplete) => incomplete.push(&alphabet_bytes(token)),
            Self::With { separator, begun } => {
                let before = if std::mem::replace(begun, true) { *separator } else { "" };
                format!("{before}{token}")
            }
        }
    }

    fn finish(&mut self) -> String {
        match self {
            Self::Bytes(incomplete) => incomplete.finish(),
            Self::With { .. } => String::new(),
        }
    }
}

impl Chain {
    /// The steps of a decoder; without one, tokens are joined with spaces.
    pub(super) fn new(decoder: Option<&DecoderWrapper>) -> Self {
        let mut chain = Self { tokens: Vec::new(), join: None, text: Vec::new() };
        match decoder {
            Some(decoder) => chain.add(decoder),
            None => chain.join = Some(Join::With { separator: " ", begun: false }),
        }
        chain
    }

    fn add(&mut self, decoder: &DecoderWrapper) {
        if let DecoderWrapper::Sequence(sequence) = decoder {
            sequence.get_decoders().iter().for_each(|decoder| self.add(decoder));
        } else if self.join.is_some() {
            match self.text.last_mut() {
                // A step after one that needs the whole text needs it too.
                Some(TextStep::Whole { steps, .. }) => steps.push(Arc::new(decoder.clone())),
                _ => self.text.extend(TextStep::new(decoder)),
            }
        } else {
            match decoder {
                DecoderWrapper::ByteLevel(_) => {
                    self.join = Some(Join::Bytes(Incomplete::default()))
                }
                DecoderWrapper::Fuse(_) => {
                    self.join = Some(Join::With { separator: "", begun: false });
                }
                other => self.tokens.push(TokenStep::new(other)),
            }
        }
    }

    /// Adds a token; returns the text that no later token changes.
    pub(super) fn push(&mut self, token: String) -> tokenizers::Result<String> {
        let mut tokens = vec![token];
        for step in &mut self.tokens {
            let mut out = Vec::new();
            for token in tokens {
                step.push(token, &mut out)?;
            }
            tokens = out;
        }
        Ok(self.join(&tokens))
    }

    fn join(&mut self, tokens: &[String]) -> String {
        let Some(join) = &mut self.join else { return tokens.concat() };
        let mut text: String = tokens.iter().map(|token| join.push(token)).collect();
        for step in &mut self.text {
            text = step.push(text);
        }
        text
    }

    /// The buffered text, when no more tokens arrive.
    pub(super) fn finish(&mut self) -> tokenizers::Result<String> {
        let mut tokens = Vec::new();
        for step in &mut self.tokens {
            let mut out = Vec::new();
            for token in tokens {
                step.push(token, &mut out)?;
            }
            step.finish(&mut out);
            tokens = out;
        }
        let mut text = self.join(&tokens);
        let Some(join) = &mut self.join else { return Ok(text) };
        let mut rest = join.finish();
        for step in &mut self.text {
            rest = step.push(rest) + &step.finish()?;
        }
        text.push_str(&rest);
        Ok(text)
    }

    /// The bytes that a token adds to a text, as its first token or later.
    pub(super) fn bytes(&self, token: String, first: bool) -> tokenizers::Result<Vec<u8>> {
        let mut text = token;
        for step in &self.tokens {
            if matches!(step, TokenStep::ByteRuns(_)) {
                if let Some(byte) = tokens::byte(&text) {
                    if !byte.is_ascii() {
                        return Ok(vec![byte]);
                    }
                    text = char::from(byte).to_string();
                }
                continue;
            }
            text = step.alone(text, first)?;
        }
        match &self.join {
            Some(Join::Bytes(_)) => match String::from_utf8(alphabet_bytes(&text)) {
                Ok(whole) => text = whole,
                Err(part) => return Ok(part.into_bytes()),
            },
            Some(Join::With { separator, .. }) if !first => text.insert_str(0, separator),
            _ => {}
        }
        for step in &self.text {
            text = step.alone(text, first)?;
        }
        Ok(text.into_bytes())
    }
}

/// Runs a decoder on these tokens.
fn decoded(decoder: &DecoderWrapper, tokens: Vec<String>) -> tokenizers::Result<Vec<String>> {
    decoder.decode_chain(tokens)
}

/// A field of a decoder that has no accessor.
fn field(decoder: &impl serde::Serialize, name: &str) -> Value {
    serde_json::to_value(decoder)
        .ok()
        .and_then(|mut all| Some(all.get_mut(name)?.take()))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
