//! Answers bound to a form: llguidance says which tokens may come next.

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use models::{Guide, Tokenizer};
use serde_json::Value;
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
pub struct Grammars(ParserFactory);

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
        let count = u32::try_from(vocabulary).unwrap_or(u32::MAX);
        let words: Vec<Vec<u8>> = (0..count).map(word).collect();
        let trie = TokTrie::from(&TokRxInfo::new(count, end), &words);
        let environment: llguidance::toktrie::TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory =
            ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
        factory.quiet();
        Ok(Self(factory))
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
        let matcher = Matcher::new(self.0.create_parser(grammar));
        match matcher.get_error() {
            Some(error) => Err(error.lines().next().unwrap_or("the form is wrong").to_owned()),
            None => Ok(Bound { matcher, failed: Arc::default() }),
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
        Self { matcher: self.matcher.deep_clone(), failed: Arc::default() }
    }
}

impl Guide for Bound {
    fn mask(&mut self, allowed: &mut [u32]) {
        match self.matcher.compute_mask_or_eos() {
            // Words behind those of the vocabulary, and tokens behind its last one, are in neither.
            Ok(mask) => allowed.copy_from_slice(&mask.as_slice()[..allowed.len()]),
            Err(error) => self.fail(&error),
        }
    }

    fn take(&mut self, token: u32) -> bool {
        match self.matcher.consume_token(token) {
            Ok(()) => self.matcher.is_stopped(),
            Err(error) => {
                self.fail(&error);
                true
            }
        }
    }
}
