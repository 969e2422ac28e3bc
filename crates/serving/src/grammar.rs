//! Structured outputs: llguidance computes which tokens the grammar allows next.

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use models::{Guide, Tokenizer};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The grammar that an answer has to conform to.
#[derive(Debug, Clone, PartialEq)]
pub enum StructuredOutput {
    /// JSON that validates against a schema.
    Json(Value),
    /// Text that a regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Text that a grammar derives, written in llguidance's variant of Lark.
    Lark(String),
}

/// Compiles guides for one vocabulary. The tokens are in a trie.
pub struct Grammars {
    factory: ParserFactory,
    first_tokens: Arc<FirstTokens>,
}

/// Tokens whose bytes at the beginning of a text differ from their bytes elsewhere, such as `▁the` of SentencePiece.
/// Each has a second entry in the trie, after the entries of the vocabulary.
#[derive(Debug, Default)]
struct FirstTokens {
    /// The second entry of a token. `None` for a token that adds no bytes at the beginning of a text; the token after
    /// it adds the same bytes as in the middle of a text.
    entries: HashMap<u32, Option<u32>>,
    vocabulary: u32,
}

impl FirstTokens {
    /// Allows a token as the first_tokens one if its second entry is allowed.
    fn choose(&self, entries: &[u32], allowed: &mut [u32]) {
        for (token, entry) in &self.entries {
            let (word, bit) = (*token as usize / 32, 1 << (token % 32));
            let is_allowed =
                entry.is_none_or(|entry| entries[entry as usize / 32] >> (entry % 32) & 1 == 1);
            match is_allowed {
                true => allowed[word] |= bit,
                false => allowed[word] &= !bit,
            }
        }
    }

    /// Clears the bits of second entries in the mask word that also has the vocabulary's last tokens.
    fn clear(&self, allowed: &mut [u32]) {
        let used = self.vocabulary % 32;
        if used > 0
            && let Some(last) = allowed.get_mut(self.vocabulary as usize / 32)
        {
            *last &= (1 << used) - 1;
        }
    }

    /// The trie entry of a token at the beginning of a text; `None` if it adds no bytes.
    fn entry(&self, token: u32) -> Option<u32> {
        self.entries.get(&token).copied().unwrap_or(Some(token))
    }
}

impl Grammars {
    /// Builds the trie of a tokenizer for a model with `vocabulary` logits. The token `end` ends an answer that is
    /// complete.
    ///
    /// # Errors
    /// llguidance's message.
    pub fn new(tokenizer: &Tokenizer, vocabulary: usize, end: u32) -> Result<Self, String> {
        let word = |id: u32| {
            let bytes = tokenizer.bytes(id).unwrap_or_default();
            // A special token is not text: no terminal of a grammar matches it.
            match tokenizer.is_special(id) {
                true => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes.as_slice()].concat(),
                false => bytes,
            }
        };
        let vocabulary = u32::try_from(vocabulary).unwrap_or(u32::MAX);
        let mut token_bytes: Vec<Vec<u8>> = (0..vocabulary).map(word).collect();
        let mut first_tokens = FirstTokens { entries: HashMap::new(), vocabulary };
        for id in (0..vocabulary).filter(|id| !tokenizer.is_special(*id)) {
            let bytes = tokenizer.first_bytes(id).unwrap_or_default();
            if bytes == token_bytes[id as usize] {
                continue;
            }
            let entry = u32::try_from(token_bytes.len()).ok().filter(|_| !bytes.is_empty());
            first_tokens.entries.insert(id, entry);
            if entry.is_some() {
                token_bytes.push(bytes);
            }
        }
        let count = u32::try_from(token_bytes.len()).unwrap_or(u32::MAX);
        let trie = TokTrie::from(&TokRxInfo::new(count, end), &token_bytes);
        let environment: llguidance::toktrie::TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory =
            ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
        factory.quiet();
        Ok(Self { factory, first_tokens: Arc::new(first_tokens) })
    }

    /// Compiles a guide that constrains a sequence to a grammar.
    ///
    /// # Errors
    /// llguidance's message about the schema, the expression or the grammar.
    pub fn guide(&self, form: &StructuredOutput) -> Result<GrammarGuide, String> {
        let grammar = match form {
            StructuredOutput::Json(schema) => TopLevelGrammar::from_json_schema(schema.clone()),
            StructuredOutput::Lark(grammar) => TopLevelGrammar::from_lark(grammar.clone()),
            StructuredOutput::Regex(expression) => TopLevelGrammar::from_regex(expression),
            StructuredOutput::Choice(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
                TopLevelGrammar::from_lark(format!("start: {}", texts.join(" | ")))
            }
        };
        let matcher = Matcher::new(self.factory.create_parser(grammar));
        match matcher.get_error() {
            Some(error) => Err(error.lines().next().unwrap_or("the grammar is invalid").to_owned()),
            None => {
                let tokens = Arc::clone(&self.first_tokens);
                Ok(GrammarGuide { matcher, tokens, at_start: true, failed: Arc::default() })
            }
        }
    }
}

/// A string literal of llguidance's grammars, which use JSON's syntax.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The state of one sequence in its grammar.
pub struct GrammarGuide {
    matcher: Matcher,
    tokens: Arc<FirstTokens>,
    /// True until the first token.
    at_start: bool,
    failed: GuideFailure,
}

/// The error that stopped a guide, shared with the worker.
pub(crate) type GuideFailure = Arc<Mutex<Option<String>>>;

impl GrammarGuide {
    /// The cell that receives the error that stops the guide.
    pub(crate) fn failure(&self) -> GuideFailure {
        Arc::clone(&self.failed)
    }

    fn fail(&self, error: &impl ToString) {
        let words = error.to_string();
        let first = words.lines().next().unwrap_or_default().to_owned();
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(first);
    }
}

impl Clone for GrammarGuide {
    /// A copy of the state, for another sequence.
    fn clone(&self) -> Self {
        Self {
            matcher: self.matcher.deep_clone(),
            tokens: Arc::clone(&self.tokens),
            at_start: self.at_start,
            failed: Arc::default(),
        }
    }
}

impl Guide for GrammarGuide {
    fn mask(&mut self, allowed: &mut [u32]) {
        match self.matcher.compute_mask_or_eos() {
            Ok(mask) => {
                // The mask words after the vocabulary belong to second entries and are not copied.
                let entries = mask.as_slice();
                allowed.copy_from_slice(&entries[..allowed.len()]);
                self.tokens.clear(allowed);
                if self.at_start {
                    self.tokens.choose(entries, allowed);
                }
            }
            Err(error) => self.fail(&error),
        }
    }

    fn take(&mut self, token: u32) -> bool {
        let is_first = std::mem::take(&mut self.at_start);
        let entry = if is_first { self.tokens.entry(token) } else { Some(token) };
        let Some(entry) = entry else { return false };
        match self.matcher.consume_token(entry) {
            Ok(()) => self.matcher.is_stopped(),
            Err(error) => {
                self.fail(&error);
                true
            }
        }
    }
}
