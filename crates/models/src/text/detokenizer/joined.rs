//! Decoder steps on a growing text.

use super::{decoded, field};
use serde_json::Value;
use std::sync::Arc;
use tokenizers::DecoderWrapper;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;

/// A step after tokens were joined.
#[derive(Debug, Clone)]
pub(super) enum TextStep {
    /// Removes up to a number of one character from both ends of the text.
    Strip {
        content: char,
        /// Number that is still removed at the beginning.
        start: usize,
        stop: usize,
        /// Number at the end so far, up to `stop`.
        held: usize,
    },
    /// Replaces a string.
    Replace {
        pattern: String,
        content: String,
        /// The end of the text that may be the beginning of the string.
        held: String,
    },
    /// Buffers the whole text, for decoders whose output is only known at the end.
    Whole { steps: Vec<Arc<DecoderWrapper>>, text: String },
}

impl TextStep {
    /// `None` for a decoder that has no effect here.
    pub(super) fn new(decoder: &DecoderWrapper) -> Option<Self> {
        let replace = |pattern: String, content: &str| {
            let (content, held) = (content.to_owned(), String::new());
            Self::Replace { pattern, content, held }
        };
        let whole = || Self::Whole { steps: vec![Arc::new(decoder.clone())], text: String::new() };
        Some(match decoder {
            DecoderWrapper::Fuse(_) => return None,
            DecoderWrapper::Strip(strip) => {
                let (content, start, stop) = (strip.content, strip.start, strip.stop);
                Self::Strip { content, start, stop, held: 0 }
            }
            DecoderWrapper::Replace(step) => match field(step, "pattern").get("String") {
                Some(Value::String(pattern)) if !pattern.is_empty() => {
                    replace(pattern.clone(), &step.content)
                }
                _ => whole(),
            },
            // The joined text is the first token, from which the character is removed.
            DecoderWrapper::Metaspace(step) => {
                let space = if step.prepend_scheme == PrependScheme::Never { " " } else { "" };
                replace(step.get_replacement().to_string(), space)
            }
            _ => whole(),
        })
    }

    /// Adds text; returns what later text does not change.
    pub(super) fn push(&mut self, mut text: String) -> String {
        match self {
            Self::Strip { content, start, stop, held } => {
                while *start > 0 && !text.is_empty() {
                    match text.strip_prefix(*content) {
                        Some(rest) => (text, *start) = (rest.to_owned(), *start - 1),
                        None => *start = 0,
                    }
                }
                let kept = text.trim_end_matches(*content).len();
                let ends = (text.len() - kept) / content.len_utf8();
                // The buffered characters precede the text.
                let all = if kept == 0 { *held + ends } else { ends };
                let shown_before = if kept == 0 { 0 } else { *held };
                let shown_after = all.saturating_sub(*stop);
                *held = all - shown_after;
                let repeated = |count: usize| content.to_string().repeat(count);
                repeated(shown_before) + &text[..kept] + &repeated(shown_after)
            }
            Self::Replace { pattern, content, held } => {
                held.push_str(&text);
                let mut out = String::new();
                let mut from = 0;
                while let Some(at) = held[from..].find(&*pattern) {
                    out.push_str(&held[from..from + at]);
                    out.push_str(content);
                    from += at + pattern.len();
                }
                let rest = &held[from..];
                let near = rest.len().saturating_sub(pattern.len() - 1);
                let begins = |at: &usize| pattern.starts_with(&rest[*at..]);
                let starts = rest.char_indices().map(|(at, _)| at).filter(|at| *at >= near);
                let keep = { starts }.find(begins).unwrap_or(rest.len());
                out.push_str(&rest[..keep]);
                held.drain(..from + keep);
                out
            }
            Self::Whole { text: all, .. } => {
                all.push_str(&text);
                String::new()
            }
        }
    }

    /// The buffered text.
    pub(super) fn finish(&mut self) -> tokenizers::Result<String> {
        Ok(match self {
            Self::Strip { .. } => String::new(),
            Self::Replace { held, .. } => std::mem::take(held),
            Self::Whole { steps, text } => whole(steps, std::mem::take(text))?,
        })
    }

    /// Runs the step on the text of a first token, or of a later one.
    pub(super) fn alone(&self, text: String, first: bool) -> tokenizers::Result<String> {
        Ok(match self {
            Self::Strip { content, start, .. } if first => {
                let mut rest = text.as_str();
                for _ in 0..*start {
                    rest = rest.strip_prefix(*content).unwrap_or(rest);
                }
                rest.to_owned()
            }
            Self::Strip { .. } => text,
            Self::Replace { pattern, content, .. } => text.replace(pattern.as_str(), content),
            Self::Whole { steps, .. } => whole(steps, text)?,
        })
    }
}

fn whole(steps: &[Arc<DecoderWrapper>], text: String) -> tokenizers::Result<String> {
    let mut tokens = vec![text];
    for step in steps {
        tokens = match &**step {
            // The implementation in `tokenizers` panics on texts shorter than what it removes.
            DecoderWrapper::Strip(_) => {
                let mut own = TextStep::new(step);
                let mut strip = |token: String| match &mut own {
                    Some(own) => own.clone().push(token),
                    None => token,
                };
                tokens.into_iter().map(&mut strip).collect()
            }
            _ if tokens.is_empty() => tokens,
            other => decoded(other, tokens)?,
        };
    }
    Ok(tokens.concat())
}
