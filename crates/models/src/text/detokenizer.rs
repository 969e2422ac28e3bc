//! Incremental decoding: the text of token ids as they come, equal to what `tokenizers` decodes of the whole list.
//!
//! A tokenizer.json's decoder is a chain of steps from a list of tokens to a list of texts. Each step runs here as a stream: it passes
//! on what no later token can change and holds the rest back, so a token costs the same however long the text is. Until a step joins
//! its tokens to one text, steps work token by token ([`tokens`]); behind it they work on a growing text ([`joined`]).

mod joined;
mod tokens;

use super::tiktoken;
use joined::TextStep;
use serde_json::Value;
use std::sync::Arc;
use tokenizers::{Decoder, DecoderWrapper};
use tokens::TokenStep;

/// A tokenizer's decoder as steps.
#[derive(Debug, Clone)]
pub(super) struct Chain {
    tokens: Vec<TokenStep>,
    join: Option<Join>,
    text: Vec<TextStep>,
}

/// How tokens become one text.
#[derive(Debug, Clone)]
enum Join {
    /// By GPT-2's alphabet of bytes.
    Bytes(Incomplete),
    /// With this between two of them.
    With { separator: &'static str, begun: bool },
}

/// The bytes at the end of a text that are a character's beginning.
#[derive(Debug, Clone, Default)]
struct Incomplete(Vec<u8>);

impl Incomplete {
    /// Adds bytes; returns the complete characters, with U+FFFD for what is none, as `String::from_utf8_lossy` has it.
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

/// The bytes of a token by GPT-2's alphabet; those of its text when it has other characters.
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
                // A step that follows one that waits for the end waits too.
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

    /// The text that was held back, when no more tokens come.
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

    /// The bytes that a token adds to a text: as its first token, or after others.
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

/// Runs a decoder over these tokens.
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
