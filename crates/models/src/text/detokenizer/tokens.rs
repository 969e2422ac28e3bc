//! Decoder steps from tokens to tokens.

use super::decoded;
use std::sync::Arc;
use tokenizers::DecoderWrapper;
use tokenizers::decoders::strip::Strip;

/// A step that processes separate tokens.
#[derive(Debug, Clone)]
pub(super) enum TokenStep {
    /// Maps each token separately; the first of a text may differ.
    Each { decoder: Arc<DecoderWrapper>, begun: bool },
    /// Removes characters from both ends of each token.
    Strip(Strip),
    /// Drops repeated tokens (CTC).
    Ctc { decoder: Arc<DecoderWrapper>, last: Option<String> },
    /// A suffix becomes a space, except at the end of the text: the last token is buffered.
    Suffix { suffix: String, last: Option<String> },
    /// A run of single-byte tokens becomes text if all of it is UTF-8, otherwise one U+FFFD per byte; it is buffered
    /// until it ends.
    ByteRuns(Vec<u8>),
}

impl TokenStep {
    pub(super) fn new(decoder: &DecoderWrapper) -> Self {
        match decoder {
            DecoderWrapper::Strip(strip) => Self::Strip(strip.clone()),
            DecoderWrapper::CTC(_) => Self::Ctc { decoder: Arc::new(decoder.clone()), last: None },
            DecoderWrapper::BPE(decoder) => {
                Self::Suffix { suffix: decoder.suffix.clone(), last: None }
            }
            DecoderWrapper::ByteFallback(_) => Self::ByteRuns(Vec::new()),
            other => Self::Each { decoder: Arc::new(other.clone()), begun: false },
        }
    }

    pub(super) fn push(&mut self, token: String, out: &mut Vec<String>) -> tokenizers::Result<()> {
        match self {
            Self::Each { begun, .. } => {
                let first = !std::mem::replace(begun, true);
                out.push(self.alone(token, first)?);
            }
            Self::Strip(strip) => out.push(stripped(strip, &token).to_owned()),
            Self::Ctc { decoder, last } => {
                if last.as_ref() != Some(&token) {
                    *last = Some(token.clone());
                    out.extend(decoded(decoder, vec![token])?);
                }
            }
            Self::Suffix { suffix, last } => {
                out.extend(last.replace(token).map(|token| token.replace(&*suffix, " ")));
            }
            Self::ByteRuns(run) => match byte(&token) {
                Some(byte) => run.push(byte),
                None => {
                    flush(run, out);
                    out.push(token);
                }
            },
        }
        Ok(())
    }

    pub(super) fn finish(&mut self, out: &mut Vec<String>) {
        match self {
            Self::Suffix { suffix, last } => {
                out.extend(last.take().map(|token| token.replace(&*suffix, "")));
            }
            Self::ByteRuns(run) => flush(run, out),
            Self::Each { .. } | Self::Strip(_) | Self::Ctc { .. } => {}
        }
    }

    /// Runs the step on a first token, or on a later one.
    pub(super) fn alone(&self, token: String, first: bool) -> tokenizers::Result<String> {
        Ok(match self {
            Self::Each { decoder, .. } => {
                let mut tokens = vec![token];
                if !first {
                    tokens.insert(0, String::new());
                }
                decoded(decoder, tokens)?.pop().unwrap_or_default()
            }
            Self::Strip(strip) => stripped(strip, &token).to_owned(),
            Self::Ctc { decoder, .. } => decoded(decoder, vec![token])?.concat(),
            Self::Suffix { suffix, .. } => token.replace(suffix, " "),
            Self::ByteRuns(_) => token,
        })
    }
}

/// The byte of a token such as `<0x0A>`.
pub(super) fn byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

fn flush(run: &mut Vec<u8>, out: &mut Vec<String>) {
    let run = std::mem::take(run);
    if run.is_empty() {
        return;
    }
    let count = run.len();
    match String::from_utf8(run) {
        Ok(text) => out.push(text),
        Err(_) => out.extend((0..count).map(|_| char::REPLACEMENT_CHARACTER.to_string())),
    }
}

/// A token without up to a number of one character at its ends.
fn stripped<'a>(strip: &Strip, token: &'a str) -> &'a str {
    let cut = |token: &'a str, most: usize, one: fn(&'a str, char) -> Option<&'a str>| {
        (0..most).try_fold(token, |token, _| one(token, strip.content).ok_or(token))
    };
    let start = cut(token, strip.start, |token, c| token.strip_prefix(c));
    let start = start.unwrap_or_else(|rest| rest);
    let end = cut(start, strip.stop, |token, c| token.strip_suffix(c));
    end.unwrap_or_else(|rest| rest)
}
