//! Answers bound to a form: llguidance says which tokens may come next.

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use models::{Guide, Tokenizer};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What an answer has to be.
#[derive(Debug, Clone, PartialEq)]
pub enum Form {
    /// A document that a JSON schema allows.
    Json(Value),
    /// A text that a regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// What a grammar in llguidance's kind of Lark derives.
    Lark(String),
}

/// Makes guides for one vocabulary, whose tokens it has in a tree.
pub struct Grammars {
    factory: ParserFactory,
    first: Arc<FirstTokens>,
}

/// Tokens that begin a text with other bytes than they have in its middle, such as `▁the` of SentencePiece. In the tree each is another
/// entry after the vocabulary's own.
#[derive(Debug, Default)]
struct FirstTokens {
    /// The entry of a token; none for one that adds nothing to the beginning of a text, after which the next one adds what it does in
    /// the middle.
    entries: HashMap<u32, Option<u32>>,
    vocabulary: u32,
}

impl FirstTokens {
    /// Allows a token first where its entry is allowed.
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

    /// Clears the entries that share a word with the vocabulary's last tokens.
    fn clear(&self, allowed: &mut [u32]) {
        let used = self.vocabulary % 32;
        if used > 0
            && let Some(last) = allowed.get_mut(self.vocabulary as usize / 32)
        {
            *last &= (1 << used) - 1;
        }
    }

    /// The entry that stands for a first token; none where it adds nothing.
    fn entry(&self, token: u32) -> Option<u32> {
        self.entries.get(&token).copied().unwrap_or(Some(token))
    }
}

impl Grammars {
    /// Of a tokenizer, for a model with so many logits. An answer that may end does so by the token `end`.
    ///
    /// # Errors
    /// llguidance's words.
    pub fn new(tokenizer: &Tokenizer, vocabulary: usize, end: u32) -> Result<Self, String> {
        let word = |id: u32| {
            let bytes = tokenizer.bytes(id).unwrap_or_default();
            // A special token is no text: no grammar's letters spell it.
            match tokenizer.is_special(id) {
                true => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes.as_slice()].concat(),
                false => bytes,
            }
        };
        let vocabulary = u32::try_from(vocabulary).unwrap_or(u32::MAX);
        let mut words: Vec<Vec<u8>> = (0..vocabulary).map(word).collect();
        let mut first = FirstTokens { entries: HashMap::new(), vocabulary };
        for id in (0..vocabulary).filter(|id| !tokenizer.is_special(*id)) {
            let bytes = tokenizer.first_bytes(id).unwrap_or_default();
            if bytes == words[id as usize] {
                continue;
            }
            let entry = u32::try_from(words.len()).ok().filter(|_| !bytes.is_empty());
            first.entries.insert(id, entry);
            if entry.is_some() {
                words.push(bytes);
            }
        }
        let count = u32::try_from(words.len()).unwrap_or(u32::MAX);
        let trie = TokTrie::from(&TokRxInfo::new(count, end), &words);
        let environment: llguidance::toktrie::TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory =
            ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
        factory.quiet();
        Ok(Self { factory, first: Arc::new(first) })
    }

    /// A guide that keeps a sequence to a form.
    ///
    /// # Errors
    /// What is wrong with the schema or the expression, in llguidance's words.
    pub fn guide(&self, form: &Form) -> Result<Bound, String> {
        let grammar = match form {
            Form::Json(schema) => TopLevelGrammar::from_json_schema(schema.clone()),
            Form::Lark(grammar) => TopLevelGrammar::from_lark(grammar.clone()),
            Form::Regex(expression) => TopLevelGrammar::from_regex(expression),
            Form::Choice(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
                TopLevelGrammar::from_lark(format!("start: {}", texts.join(" | ")))
            }
        };
        let matcher = Matcher::new(self.factory.create_parser(grammar));
        match matcher.get_error() {
            Some(error) => Err(error.lines().next().unwrap_or("the form is wrong").to_owned()),
            None => {
                let tokens = Arc::clone(&self.first);
                Ok(Bound { matcher, tokens, at_start: true, failed: Arc::default() })
            }
        }
    }
}

/// A string of llguidance's grammars, which are JSON's.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A sequence's place in its form.
pub struct Bound {
    matcher: Matcher,
    tokens: Arc<FirstTokens>,
    /// Until the first token.
    at_start: bool,
    failed: Failure,
}

/// Why a guide could not go on, seen from outside.
pub(crate) type Failure = Arc<Mutex<Option<String>>>;

impl Bound {
    /// Where it says why it could not go on.
    pub(crate) fn failure(&self) -> Failure {
        Arc::clone(&self.failed)
    }

    fn fail(&self, error: &impl ToString) {
        let words = error.to_string();
        let first = words.lines().next().unwrap_or_default().to_owned();
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(first);
    }
}

impl Clone for Bound {
    /// The same place, for another sequence.
    fn clone(&self) -> Self {
        Self {
            matcher: self.matcher.deep_clone(),
            tokens: Arc::clone(&self.tokens),
            at_start: self.at_start,
            failed: Arc::default(),
        }
    }
}

impl Guide for Bound {
    fn mask(&mut self, allowed: &mut [u32]) {
        match self.matcher.compute_mask_or_eos() {
            Ok(mask) => {
                // Words after those of the vocabulary are not copied.
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
