use super::tiktoken;
use crate::ModelError;
use crate::gguf::{self, is_gguf};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tokenizers::DecoderWrapper;

/// A model's tokenizer.
pub struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
}

impl Tokenizer {
    /// Reads tokenizer.json of a model's folder, or converts its tiktoken.model, or the vocabulary of a GGUF file.
    ///
    /// # Errors
    /// [`ModelError::File`] when there is neither, or it cannot be used.
    pub fn read(folder: &Path) -> Result<Self, ModelError> {
        let (json, ranks) = (folder.join("tokenizer.json"), folder.join("tiktoken.model"));
        let (path, text) = if is_gguf(folder) {
            (folder.to_owned(), gguf::tokenizer(folder)?)
        } else if !json.exists() && ranks.exists() {
            let config = folder.join("tokenizer_config.json");
            let config = if config.exists() { Some(read_json(&config)?) } else { None };
            let text = read_text(&ranks)?;
            let made = tiktoken::convert(&text, config.as_ref());
            let made = made.map_err(|reason| ModelError::file(&ranks, reason))?;
            (ranks, made.to_string())
        } else {
            let hint = "the tokenizer is published with the weights; without one, give token ids with --ids";
            let text = read_text(&json).map_err(|error| error.hinted(hint))?;
            (json, text)
        };
        match text.parse() {
            Ok(inner) => Ok(Self { path, inner }),
            Err(error) => Err(ModelError::file(&path, format!("is not a tokenizer: {error}"))
                .hinted("download the tokenizer that was published with the weights")),
        }
    }

    /// Token ids of a text, in which special tokens may be spelled out. Nothing is added before it or after.
    ///
    /// # Errors
    /// [`ModelError::File`] with the tokenizer's words.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        self.encode_with(text, false)
    }

    /// The same, where `special` with the tokens that the tokenizer itself adds at the beginning or the end of a text.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_with(&self, text: &str, special: bool) -> Result<Vec<u32>, ModelError> {
        match self.inner.encode(text, special) {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(error) => Err(ModelError::file(&self.path, format!("cannot encode this: {error}"))),
        }
    }

    /// The text of token ids, special tokens left out.
    ///
    /// # Errors
    /// [`ModelError::File`] with the tokenizer's words.
    pub fn decode(&self, ids: &[u32]) -> Result<String, ModelError> {
        self.decode_with(ids, false)
    }

    /// The same, where `special` with special tokens spelled out.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn decode_with(&self, ids: &[u32], special: bool) -> Result<String, ModelError> {
        let decoded = self.inner.decode(ids, !special);
        decoded
            .map_err(|error| ModelError::file(&self.path, format!("cannot decode this: {error}")))
    }

    /// The bytes that a token stands for, which need not be whole characters; none for an id that the tokenizer lacks.
    pub fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        let spelled = self.inner.id_to_token(id)?;
        if self.inner.get_added_tokens_decoder().contains_key(&id) {
            return Some(spelled.into_bytes());
        }
        let bytes = matches!(self.inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_)));
        let spelled_bytes = bytes.then(|| tiktoken::bytes_of(&spelled)).flatten();
        spelled_bytes.or_else(|| Some(self.decode_with(&[id], true).ok()?.into_bytes()))
    }

    /// Whether a token is none of a text's own, such as the one that ends an answer.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.get_added_tokens_decoder().get(&id).is_some_and(|token| token.special)
    }

    /// The id of a token that is spelled so.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The largest token id and one: a model's vocabulary is no smaller.
    pub fn vocabulary(&self) -> usize {
        let ids = self.inner.get_vocab(true).into_values();
        ids.max().map_or(0, |largest| largest as usize + 1)
    }

    /// Text as tokens come.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream { tokenizer: self, held: HeldTokens::default() }
    }
}

/// Text as tokens come: a character whose bytes are spread over tokens is given when its last byte is there.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    held: HeldTokens,
}

impl TextStream<'_> {
    /// Adds a token; gives the text that is complete.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn push(&mut self, token: u32) -> Result<String, ModelError> {
        self.held.push(self.tokenizer, token)
    }

    /// What is left, when no more tokens come.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn finish(mut self) -> Result<String, ModelError> {
        self.held.finish(self.tokenizer)
    }
}

/// The tokens of a [`TextStream`] whose text is not complete, for whoever keeps the tokenizer elsewhere.
#[derive(Debug, Clone, Default)]
pub struct HeldTokens(Vec<u32>);

impl HeldTokens {
    /// Adds a token; gives the text that is complete.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> Result<String, ModelError> {
        // No character has more than four bytes: what is no character by then will not become one.
        const LONGEST: usize = 4;
        self.0.push(token);
        let text = tokenizer.decode(&self.0)?;
        if text.ends_with(char::REPLACEMENT_CHARACTER) && self.0.len() < LONGEST {
            return Ok(String::new());
        }
        self.0.clear();
        Ok(text)
    }

    /// What is left, when no more tokens come.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String, ModelError> {
        tokenizer.decode(&std::mem::take(&mut self.0))
    }
}

pub(super) fn read_text(path: &Path) -> Result<String, ModelError> {
    std::fs::read_to_string(path).map_err(|error| ModelError::file(path, error))
}

pub(super) fn read_json(path: &Path) -> Result<Value, ModelError> {
    serde_json::from_str(&read_text(path)?)
        .map_err(|error| ModelError::file(path, format!("is not JSON: {error}")))
}
