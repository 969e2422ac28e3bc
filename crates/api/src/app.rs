use crate::body::LargeBodies;
use crate::cors::CorsSettings;
use crate::error::{ApiError, ErrorShape};
use crate::keys::Keys;
use crate::log::{Log, Record, RequestRecord};
use crate::parsers::Taught;
use crate::stored_responses::StoredResponses;
use axum::http::StatusCode;
use axum::response::Response;
use models::{ChatTemplate, Encoded, Pooler, Tokenizer};
use serving::{Grammars, Service};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What requests that say nothing of it are answered with, from the model's own files.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Defaults {
    /// As in a request.
    pub temperature: f64,
    /// As in a request.
    pub top_p: f64,
    /// As in a request; none for all tokens.
    pub top_k: Option<usize>,
    /// As in a request.
    pub min_p: f64,
    /// As in a request.
    pub repetition_penalty: f64,
}

impl Default for Defaults {
    /// OpenAI's.
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0, top_k: None, min_p: 0.0, repetition_penalty: 1.0 }
    }
}

/// How a model reads and writes text.
pub struct Texts {
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat template, or why there is none.
    pub template: Result<ChatTemplate, String>,
    /// Tokens that end its answers.
    pub stop_ids: Vec<u32>,
    /// How its embeddings are made, or why there are none.
    pub pooler: Result<Pooler, String>,
}

/// How a server is run.
pub struct Settings {
    /// What clients may call the model; answers have the first.
    pub names: Vec<String>,
    /// Where the model was read from.
    pub root: String,
    /// firstlight's version.
    pub version: String,
    /// Keys that open the server; none for everybody.
    pub keys: Vec<String>,
    /// Where a request says nothing.
    pub defaults: Defaults,
    /// Which pages of other origins are answered.
    pub cors: CorsSettings,
    /// How long open requests may go on once the server is asked to stop.
    pub drain: Duration,
    /// Largest body of a request in bytes.
    pub body_bytes: usize,
    /// Most answers of one request.
    pub choices: usize,
    /// One of [`crate::tool_call_parsers`]; none for what the chat template teaches.
    pub tool_call_parser: Option<String>,
    /// One of [`crate::reasoning_parsers`]; none for what the chat template teaches.
    pub reasoning_parser: Option<String>,
    /// Where lines of the log go.
    pub log: Log,
}

/// What every request has in common.
pub(crate) struct App {
    pub(crate) service: Service,
    pub(crate) texts: Texts,
    pub(crate) settings: Settings,
    pub(crate) keys: Keys,
    pub(crate) large_bodies: LargeBodies,
    /// Seconds since 1970 when the server began.
    pub(crate) created: u64,
    /// Made when the first answer is to keep to a form: that takes a while for a large vocabulary.
    grammars: OnceLock<Result<Grammars, String>>,
    /// How the model writes calls and reasoning.
    taught: OnceLock<Taught>,
    /// Tokens of beginnings of prompts.
    beginnings: Mutex<HashMap<u64, usize>>,
    /// Responses that are kept in memory.
    pub(crate) responses: StoredResponses,
    ids: RandomState,
    requests: AtomicU64,
}

impl App {
    pub(crate) fn new(service: Service, texts: Texts, settings: Settings) -> Self {
        Self {
            service,
            texts,
            keys: Keys::new(&settings.keys),
            large_bodies: LargeBodies::new(),
            created: now(),
            grammars: OnceLock::new(),
            settings,
            taught: OnceLock::new(),
            beginnings: Mutex::default(),
            responses: StoredResponses::default(),
            ids: RandomState::new(),
            requests: AtomicU64::new(0),
        }
    }

    /// The name in answers.
    pub(crate) fn name(&self) -> &str {
        self.settings.names.first().map_or("model", String::as_str)
    }

    /// Random bits that no other request has.
    pub(crate) fn random(&self) -> u64 {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        self.ids.hash_one((number, SystemTime::now()))
    }

    /// A new id with a prefix.
    pub(crate) fn id(&self, prefix: &str) -> String {
        format!("{prefix}{:016x}{:016x}", self.random(), self.random())
    }

    /// What keeps answers to forms.
    pub(crate) fn grammars(&self) -> Result<&Grammars, ApiError> {
        let Some(end) = self.texts.stop_ids.first() else {
            return Err(ApiError::invalid("the model's files name no token that ends an answer"));
        };
        let vocabulary = self.service.limits().vocabulary;
        let make = || Grammars::new(&self.texts.tokenizer, vocabulary, *end);
        self.grammars.get_or_init(make).as_ref().map_err(ApiError::server)
    }

    /// How the model writes calls and reasoning.
    pub(crate) fn taught(&self) -> Taught {
        let Settings { tool_call_parser, reasoning_parser, .. } = &self.settings;
        *self.taught.get_or_init(|| {
            let template = self.texts.template.as_ref().ok();
            Taught::new(template, tool_call_parser.as_deref(), reasoning_parser.as_deref())
        })
    }

    /// The tokens of a prompt, which is refused when it is too long for the model.
    pub(crate) fn encode(
        &self,
        text: &str,
        special: bool,
        field: &str,
    ) -> Result<Vec<u32>, ApiError> {
        let limits = self.service.limits();
        match self.texts.tokenizer.encode_up_to(text, special, limits.tokens) {
            Ok(Encoded::Ids(ids)) => Ok(ids),
            Ok(Encoded::AtLeast(count)) => {
                limits.check_size(1, count)?;
                Err(ApiError::field(field, format!("it has {count} tokens or more")))
            }
            Err(error) => Err(ApiError::field(field, error.to_string())),
        }
    }

    /// Tokens of the beginning of a prompt, which many prompts have: counted once.
    pub(crate) fn tokens_of(&self, beginning: &str) -> usize {
        /// Beginnings that are remembered, until there are more.
        const MOST: usize = 256;
        let name = self.ids.hash_one(beginning);
        let mut counted = self.beginnings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counted.get(&name) {
            return *count;
        }
        let count = self.texts.tokenizer.encode(beginning).map_or(0, |tokens| tokens.len());
        if counted.len() >= MOST {
            counted.clear();
        }
        counted.insert(name, count);
        count
    }

    /// Whether the server has a model of this name.
    pub(crate) fn check_model(&self, name: Option<String>) -> Result<(), ApiError> {
        match name {
            Some(name) if !self.settings.names.contains(&name) => {
                Err(ApiError::unknown_model(&name, &self.settings.names))
            }
            _ => Ok(()),
        }
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The log's line of a request, written when the request is over: whether it was answered or its client left.
pub(crate) struct Line {
    log: Log,
    began: Instant,
    record: RequestRecord,
    quiet: bool,
}

impl Line {
    /// One is begun with each request. What is `quiet`, as a probe is, has none where it is answered,
    /// whatever the answer says.
    pub(crate) fn new(log: &Log, route: String, quiet: bool) -> Self {
        // What it is unless an answer is complete.
        const LEFT: u16 = 499;
        let record = RequestRecord {
            id: None,
            route,
            status: LEFT,
            prompt_tokens: None,
            cached_tokens: None,
            completion_tokens: None,
            first_token_ms: None,
            total_ms: 0.0,
            error: None,
        };
        Self { log: Arc::clone(log), began: Instant::now(), record, quiet }
    }

    pub(crate) fn begin(&mut self, id: &str, prompt_tokens: usize) {
        self.record.id = Some(id.to_owned());
        self.record.prompt_tokens = Some(prompt_tokens);
        self.record.completion_tokens = Some(0);
    }

    /// Counts tokens of prompts that need not be read.
    pub(crate) fn cached(&mut self, tokens: usize) {
        *self.record.cached_tokens.get_or_insert(0) += tokens;
    }

    pub(crate) fn cached_tokens(&self) -> usize {
        self.record.cached_tokens.unwrap_or(0)
    }

    /// Counts a token.
    pub(crate) fn token(&mut self) {
        let began = self.began;
        *self.record.completion_tokens.get_or_insert(0) += 1;
        self.record.first_token_ms.get_or_insert_with(|| millis(began));
    }

    pub(crate) fn completion_tokens(&self) -> usize {
        self.record.completion_tokens.unwrap_or(0)
    }

    pub(crate) fn prompt_tokens(&self) -> usize {
        self.record.prompt_tokens.unwrap_or(0)
    }

    /// It was answered.
    pub(crate) fn done(&mut self, status: StatusCode) {
        self.record.status = status.as_u16();
    }

    /// It was not.
    pub(crate) fn failed(&mut self, error: &ApiError) {
        self.done(error.status);
        self.record.error = Some(error.message.clone());
    }
}

/// A request that gets no answer, and its line of the log.
pub(crate) struct Refused {
    pub(crate) error: ApiError,
    pub(crate) line: Line,
}

impl Refused {
    pub(crate) fn new(error: ApiError, line: Line) -> Box<Self> {
        Box::new(Self { error, line })
    }

    /// The response that reports the error.
    pub(crate) fn response(mut self: Box<Self>, shape: ErrorShape) -> Response {
        self.line.failed(&self.error);
        self.error.response(shape)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.record.total_ms = millis(self.began);
        if !self.quiet || self.record.error.is_some() {
            (self.log)(Record::Request(self.record.clone()));
        }
    }
}

/// To a tenth.
fn millis(since: Instant) -> f64 {
    (since.elapsed().as_secs_f64() * 1e4).round() / 10.0
}
