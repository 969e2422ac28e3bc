use super::bounds::{Normalizer, Parts};
use super::detokenizer::Chain;
use super::tiktoken;
use crate::gguf::{self, is_gguf};
use crate::read::{LARGEST_TOKENIZER, read_text_up_to};
use crate::{ModelError, read_json, read_text};
use architectures::{NonFinite, strict_json};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizers::AddedToken;

/// A model's tokenizer.
pub struct Tokenizer {
    path: PathBuf,
    inner: Arc<tokenizers::Tokenizer>,
    chain: Chain,
    added: HashMap<u32, AddedToken>,
    /// Special tokens by content: vocabulary tokens with the same spelling are also left out of texts.
    special: Arc<HashSet<String>>,
    normalizer: Normalizer,
    /// Maximum bytes of normalized text per token, if every byte is part of a token.
    longest: Option<usize>,
    vocabulary: usize,
}

/// An encoded text, or the fact that it is too long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Encoded {
    /// All of them.
    Ids(Vec<u32>),
    /// A lower bound of its number of tokens.
    AtLeast(usize),
}

impl Tokenizer {
    /// Reads tokenizer.json of a model's folder, or converts its tiktoken.model or the vocabulary of a GGUF file. The
    /// file's truncation and padding are ignored, as in transformers.
    ///
    /// # Errors
    /// [`ModelError::File`] when there is neither, or it is invalid.
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
            let text =
                read_text_up_to(&json, LARGEST_TOKENIZER).map_err(|error| error.hinted(hint))?;
            (json, text)
        };
        Self::parse(&path, &text)
    }

    /// Parses a tokenizer.json.
    fn parse(path: &Path, text: &str) -> Result<Self, ModelError> {
        let text = strict_json(text, NonFinite::Numbers);
        let wrong = |what: String| {
            ModelError::file(path, what)
                .hinted("download the tokenizer that was published with the weights")
        };
        let parts = serde_json::from_str::<Parts>(&text)
            .map_err(|error| wrong(format!("is not a tokenizer: {error}")))?;
        let normalizer = parts.normalizer();
        parts
            .check_added(&normalizer)
            .map_err(|reason| wrong(format!("cannot be read: of an added token {reason}")))?;
        let parsed = text.parse::<tokenizers::Tokenizer>();
        let mut inner = parsed.map_err(|error| wrong(format!("is not a tokenizer: {error}")))?;
        inner.with_padding(None);
        // Removing truncation cannot fail.
        let _ = inner.with_truncation(None);
        let added: HashMap<u32, AddedToken> =
            inner.get_added_tokens_decoder().into_iter().collect();
        let special = added.values().filter(|token| token.special);
        let special = special.map(|token| token.content.clone()).collect();
        let tokens = inner.get_vocab(true);
        let longest = tokens.keys().map(String::len).max().unwrap_or(0).max(1);
        let has_bytes =
            tiktoken::byte_alphabet().iter().all(|c| tokens.contains_key(&c.to_string()))
                || (0..=255).all(|byte| tokens.contains_key(&format!("<0x{byte:02X}>")));
        Ok(Self {
            path: path.to_owned(),
            chain: Chain::new(inner.get_decoder()),
            inner: Arc::new(inner),
            added,
            special: Arc::new(special),
            normalizer,
            longest: parts.covers_texts(has_bytes).then_some(longest),
            vocabulary: tokens.into_values().max().map_or(0, |largest| largest as usize + 1),
        })
    }

    #[cfg(test)]
    pub(super) fn inner(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }

    /// Token ids of a text, in which special tokens are recognized. No tokens are added.
    ///
    /// # Errors
    /// [`ModelError::File`] with the tokenizer's message.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        self.encode_with(text, false)
    }

    /// Token ids of a text, with the tokens that the tokenizer adds (such as BOS) if `special` is set.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_with(&self, text: &str, special: bool) -> Result<Vec<u32>, ModelError> {
        let wrong =
            |what: String| ModelError::file(&self.path, format!("cannot encode this: {what}"));
        self.normalizer.check(text).map_err(wrong)?;
        match self.inner.encode_fast(text, special) {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(error) => Err(wrong(error.to_string())),
        }
    }

    /// Token ids of a text of at most `most` tokens. A longer text is detected by its length, or from its beginning,
    /// before all of it is encoded.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_up_to(
        &self,
        text: &str,
        special: bool,
        most: usize,
    ) -> Result<Encoded, ModelError> {
        // Ordinary text has four to six bytes per token.
        const BYTES_PER_TOKEN: usize = 16;
        if let Some(longest) = self.longest {
            let bytes = text.len() as f64 * self.normalizer.growth.least;
            let least = (bytes / longest as f64) as usize;
            if least > most {
                return Ok(Encoded::AtLeast(least));
            }
        }
        let beginning = most.saturating_mul(BYTES_PER_TOKEN).saturating_add(1 << 12);
        if text.len() > beginning {
            let boundary = (0..=beginning).rev().find(|at| text.is_char_boundary(*at));
            let beginning = &text[..boundary.unwrap_or(0)];
            // The last word may be cut and have other tokens.
            let words =
                beginning.rfind(char::is_whitespace).map_or(beginning, |at| &beginning[..at]);
            let count = self.encode_with(words, special)?.len();
            if count > most.saturating_add(most / 8 + 16) {
                return Ok(Encoded::AtLeast(count));
            }
        }
        self.encode_with(text, special).map(Encoded::Ids)
    }

    /// The text of token ids without special tokens.
    ///
    /// # Errors
    /// [`ModelError::File`] with the tokenizer's message.
    pub fn decode(&self, ids: &[u32]) -> Result<String, ModelError> {
        self.decode_with(ids, false)
    }

    /// The text of token ids, with special tokens if `special` is set.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn decode_with(&self, ids: &[u32], special: bool) -> Result<String, ModelError> {
        let mut stream = self.stream();
        let mut text = String::new();
        for id in ids {
            text += &if special { stream.push_special(*id) } else { stream.push(*id) }?;
        }
        Ok(text + &stream.finish()?)
    }

    /// The bytes that a token adds within a text, possibly incomplete characters; for a special token those of its
    /// name. `None` for an unknown id.
    pub fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.bytes_at(id, false)
    }

    /// The bytes of a text's first token: some tokenizers omit a leading space there.
    pub fn first_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.bytes_at(id, true)
    }

    fn bytes_at(&self, id: u32, first: bool) -> Option<Vec<u8>> {
        let spelled = self.inner.id_to_token(id)?;
        match self.special.contains(&spelled) {
            true => Some(spelled.into_bytes()),
            false => self.chain.bytes(spelled, first).ok(),
        }
    }

    /// Whether a token is special, such as the one that ends an answer.
    pub fn is_special(&self, id: u32) -> bool {
        self.added.get(&id).is_some_and(|token| token.special)
    }

    /// The id of a token with this spelling.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The id of an added token with this spelling.
    pub(super) fn added_id(&self, token: &str) -> Option<u32> {
        self.id(token).filter(|id| self.added.contains_key(id))
    }

    /// The largest token id plus one; a model's vocabulary is at least as large.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// A streaming detokenizer.
    pub fn stream(&self) -> TextStream {
        TextStream {
            path: self.path.clone(),
            inner: Arc::clone(&self.inner),
            special: Arc::clone(&self.special),
            chain: self.chain.clone(),
        }
    }
}

/// A streaming detokenizer. Its parts concatenate to what `tokenizers` decodes from all tokens at once; text that a
/// later token may change is buffered.
pub struct TextStream {
    path: PathBuf,
    inner: Arc<tokenizers::Tokenizer>,
    special: Arc<HashSet<String>>,
    chain: Chain,
}

impl TextStream {
    /// Adds a token, without its text if it is special; returns the text that is final.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn push(&mut self, token: u32) -> Result<String, ModelError> {
        let token = self.inner.id_to_token(token);
        self.add(token.filter(|token| !self.special.contains(token)))
    }

    /// Adds a token with its text, special or not.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn push_special(&mut self, token: u32) -> Result<String, ModelError> {
        self.add(self.inner.id_to_token(token))
    }

    fn add(&mut self, token: Option<String>) -> Result<String, ModelError> {
        let text = token.map_or_else(|| Ok(String::new()), |token| self.chain.push(token));
        text.map_err(|error| self.failure(&error))
    }

    /// The buffered text, when no more tokens arrive.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn finish(&mut self) -> Result<String, ModelError> {
        self.chain.finish().map_err(|error| self.failure(&error))
    }

    fn failure(&self, error: &tokenizers::Error) -> ModelError {
        ModelError::file(&self.path, format!("cannot decode this: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(more: &[(&str, serde_json::Value)]) -> Vec<u32> {
        let folder = tempfile::tempdir().unwrap();
        let mut made = json!({
            "version": "1.0", "added_tokens": [],
            "model": { "type": "BPE", "vocab": { "a": 0, "b": 1 }, "merges": [] },
        });
        more.iter().for_each(|(key, value)| made[*key] = value.clone());
        let text = made.to_string().replace("\"bare\"", "-Infinity");
        std::fs::write(folder.path().join("tokenizer.json"), text).unwrap();
        Tokenizer::read(folder.path()).unwrap().encode("abababab").unwrap()
    }

    #[test]
    fn truncation_and_padding_of_the_file_are_ignored() {
        let all = read(&[]);
        assert_eq!(all, [0, 1, 0, 1, 0, 1, 0, 1]);
        let truncation = json!({
            "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0,
        });
        let padding = json!({
            "strategy": { "Fixed": 64 }, "direction": "Left", "pad_to_multiple_of": null,
            "pad_id": 1, "pad_type_id": 0, "pad_token": "b",
        });
        assert_eq!(read(&[("truncation", truncation), ("padding", padding)]), all);
    }

    #[test]
    fn long_texts_are_detected_before_encoding() {
        let folder = tempfile::tempdir().unwrap();
        let write = |tokenizer: &serde_json::Value| {
            std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
            Tokenizer::read(folder.path()).unwrap()
        };
        let made: serde_json::Value = tiktoken::convert(&tiktoken::bytes_alone(), None).unwrap();
        let tokenizer = write(&made);
        let text = "words and words ".repeat(1 << 16);
        // The longest token is a special one: `<|reserved_token_511|>`.
        let least = text.len() / 22;
        assert_eq!(tokenizer.encode_up_to(&text, false, 4096).unwrap(), Encoded::AtLeast(least));
        // The length alone allows the text; its beginning shows that it is too long.
        let beginning = tokenizer.encode_up_to(&text, false, 50_000).unwrap();
        assert!(matches!(beginning, Encoded::AtLeast(800_000..805_000)), "{beginning:?}");
        let few = tokenizer.encode_up_to("words", false, 5).unwrap();
        assert_eq!(few, Encoded::Ids(tokenizer.encode("words").unwrap()));
        // If characters may be dropped, the beginning is encoded.
        let dropping = write(&json!({
            "version": "1.0", "added_tokens": [],
            "model": { "type": "BPE", "vocab": { "a": 0, "b": 1 }, "merges": [] },
        }));
        let spaces = " ".repeat(1 << 17);
        let dropped = dropping.encode_up_to(&spaces, false, 4096).unwrap();
        assert_eq!(dropped, Encoded::Ids(Vec::new()));
        let letters = "ab ".repeat(1 << 17);
        assert!(matches!(
            dropping.encode_up_to(&letters, false, 4096).unwrap(),
            Encoded::AtLeast(_)
        ));
    }

    #[test]
    fn normalizer_that_lengthens_added_tokens_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let double = json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "aa" });
        let made = json!({
            "version": "1.0",
            "normalizer": { "type": "Sequence", "normalizers": vec![double; 60] },
            "added_tokens": [{
                "id": 2, "content": "a", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": true, "special": false,
            }],
            "model": { "type": "BPE", "vocab": { "b": 0 }, "merges": [] },
        });
        std::fs::write(folder.path().join("tokenizer.json"), made.to_string()).unwrap();
        let error = Tokenizer::read(folder.path()).err().unwrap().to_string();
        assert!(error.contains("of an added token the normalizer makes"), "{error}");
    }

    #[test]
    fn infinite_scores_are_accepted() {
        let model = json!({ "type": "Unigram", "unk_id": 0, "vocab": [["a", "bare"], ["b", 0.0]] });
        assert_eq!(read(&[("model", model)]).len(), 8);
    }
}
