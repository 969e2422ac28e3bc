use crate::body::{LargeBodies, LongTexts};
use crate::cors::CorsSettings;
use crate::error::{ApiError, ErrorShape};
use crate::keys::Keys;
use crate::log::{Log, Record, RequestRecord};
use crate::parsers::ModelFormat;
use crate::stored_responses::StoredResponses;
use axum::http::StatusCode;
use axum::response::Response;
use models::{ChatTemplate, Conversation, Encoded, ModelError, Pooler, Tokenizer};
use serving::{Grammars, Service};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Sampling settings of requests that have none, from the model's files.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingDefaults {
    /// Divides the logits; 0 is greedy.
    pub temperature: f64,
    /// Probability of the smallest set of most likely tokens to sample from (nucleus sampling).
    pub top_p: f64,
    /// Number of most likely tokens to sample from; none for all tokens.
    pub top_k: Option<usize>,
    /// Minimum probability relative to that of the most likely token.
    pub min_p: f64,
    /// Divides positive logits of tokens that occurred, and multiplies negative ones.
    pub repetition_penalty: f64,
}

impl Default for SamplingDefaults {
    /// OpenAI's defaults.
    fn default() -> Self {
        Self { temperature: 1.0, top_p: 1.0, top_k: None, min_p: 0.0, repetition_penalty: 1.0 }
    }
}

/// The tokenizer, templates and pooling of a model.
pub struct TextProcessor {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The chat template, or why the model has none.
    pub template: Result<ChatTemplate, String>,
    /// The ids of the end-of-sequence tokens.
    pub stop_ids: Vec<u32>,
    /// The pooling for embeddings, or why the model has none.
    pub pooler: Result<Pooler, String>,
}

/// Settings of a server.
pub struct ApiSettings {
    /// Model names that requests may use; responses contain the first.
    pub names: Vec<String>,
    /// The path of the model.
    pub root: String,
    /// firstlight's version.
    pub version: String,
    /// API keys; empty to serve every client.
    pub keys: Vec<String>,
    /// Sampling settings of requests that have none.
    pub defaults: SamplingDefaults,
    /// CORS settings.
    pub cors: CorsSettings,
    /// How long open requests may continue after a signal to stop.
    pub drain: Duration,
    /// Maximum size of a request body in bytes.
    pub body_bytes: usize,
    /// Maximum number of choices of one request.
    pub choices: usize,
    /// One of [`crate::tool_call_parsers`]; none for the format of the chat template.
    pub tool_call_parser: Option<String>,
    /// One of [`crate::reasoning_parsers`]; none for the style of the chat template.
    pub reasoning_parser: Option<String>,
    /// The log.
    pub log: Log,
}

/// State shared by all requests.
pub(crate) struct App {
    pub(crate) service: Service,
    pub(crate) texts: TextProcessor,
    pub(crate) settings: ApiSettings,
    pub(crate) keys: Keys,
    pub(crate) large_bodies: LargeBodies,
    long_texts: LongTexts,
    /// Seconds since 1970 at the start of the server.
    pub(crate) created: u64,
    /// The grammar compiler, created for the first answer with a grammar, because it takes a while for a large vocabulary.
    grammars: OnceLock<Result<Grammars, String>>,
    /// The format of the model's tool calls and reasoning.
    model_format: OnceLock<ModelFormat>,
    /// Numbers of tokens of prompt prefixes that requests share, by hash of the text.
    prefix_token_counts: Mutex<HashMap<u64, usize>>,
    /// Rendered openings of conversations, by hash.
    openings: Mutex<HashMap<u64, Arc<str>>>,
    /// Stored responses.
    pub(crate) responses: StoredResponses,
    ids: RandomState,
    requests: AtomicU64,
}

impl App {
    /// The state of a server on which up to `cores` long texts are tokenized at the same time.
    pub(crate) fn new(
        service: Service,
        texts: TextProcessor,
        settings: ApiSettings,
        cores: usize,
    ) -> Self {
        Self {
            service,
            texts,
            keys: Keys::new(&settings.keys),
            large_bodies: LargeBodies::new(),
            long_texts: LongTexts::new(cores),
            created: now(),
            grammars: OnceLock::new(),
            settings,
            model_format: OnceLock::new(),
            prefix_token_counts: Mutex::default(),
            openings: Mutex::default(),
            responses: StoredResponses::default(),
            ids: RandomState::new(),
            requests: AtomicU64::new(0),
        }
    }

    /// The model's name in responses.
    pub(crate) fn name(&self) -> &str {
        self.settings.names.first().map_or("model", String::as_str)
    }

    /// Random bits, unique for each request.
    pub(crate) fn random(&self) -> u64 {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        self.ids.hash_one((number, SystemTime::now()))
    }

    /// A new id with a prefix.
    pub(crate) fn id(&self, prefix: &str) -> String {
        format!("{prefix}{:016x}{:016x}", self.random(), self.random())
    }

    /// Compiles grammars for answers.
    pub(crate) fn grammars(&self) -> Result<&Grammars, ApiError> {
        let Some(end) = self.texts.stop_ids.first() else {
            return Err(ApiError::invalid("the model's files have no end-of-sequence token"));
        };
        let vocabulary = self.service.limits().vocabulary;
        let make = || Grammars::new(&self.texts.tokenizer, vocabulary, *end);
        self.grammars.get_or_init(make).as_ref().map_err(ApiError::server)
    }

    /// The format of the model's tool calls and reasoning.
    pub(crate) fn model_format(&self) -> ModelFormat {
        let ApiSettings { tool_call_parser, reasoning_parser, .. } = &self.settings;
        *self.model_format.get_or_init(|| {
            let template = self.texts.template.as_ref().ok();
            ModelFormat::new(template, tool_call_parser.as_deref(), reasoning_parser.as_deref())
        })
    }

    /// The tokens of a prompt.
    ///
    /// # Errors
    /// The prompt is too long for the model.
    pub(crate) fn encode(
        &self,
        text: &str,
        special: bool,
        field: &str,
    ) -> Result<Vec<u32>, ApiError> {
        let limits = self.service.limits();
        match self.encode_up_to(text, special, limits.tokens) {
            Ok(Encoded::Ids(ids)) => Ok(ids),
            Ok(Encoded::AtLeast(count)) => {
                limits.check_size(1, count)?;
                Err(ApiError::field(field, format!("it has {count} tokens or more")))
            }
            Err(error) => Err(ApiError::field(field, error.to_string())),
        }
    }

    /// The tokens of a text, or a lower bound of their number if it exceeds `max`.
    pub(crate) fn encode_up_to(
        &self,
        text: &str,
        special: bool,
        max: usize,
    ) -> Result<Encoded, ModelError> {
        let _permit = self.long_texts.acquire(text.len());
        self.texts.tokenizer.encode_up_to(text, special, max)
    }

    /// Number of tokens of a shared prefix, which is tokenized once.
    pub(crate) fn count_prefix_tokens(&self, prefix: &str) -> usize {
        /// Maximum number of remembered prefixes.
        const MAX: usize = 256;
        let name = self.ids.hash_one(prefix);
        let mut counts = self.prefix_token_counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get(&name) {
            return *count;
        }
        let count = self.texts.tokenizer.encode(prefix).map_or(0, |tokens| tokens.len());
        if counts.len() >= MAX {
            counts.clear();
        }
        counts.insert(name, count);
        count
    }

    /// The text of a conversation without its turns: the system message and the tools. It is rendered once.
    pub(crate) fn opening(
        &self,
        conversation: &Conversation,
        render: impl FnOnce() -> Option<String>,
    ) -> Option<Arc<str>> {
        /// Maximum number of remembered openings, and of bytes of each.
        const MOST: usize = 64;
        const BYTES: usize = 64 << 10;
        let name = self.ids.hash_one(format!("{conversation:?}"));
        let openings = || self.openings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = openings().get(&name) {
            return Some(Arc::clone(text));
        }
        // Other requests do not wait while a template renders.
        let text: Arc<str> = render()?.into();
        if text.len() <= BYTES {
            let mut openings = openings();
            if openings.len() >= MOST {
                openings.clear();
            }
            openings.insert(name, Arc::clone(&text));
        }
        Some(text)
    }

    /// Checks that the server has a model of this name.
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

/// The log line of a request, written when the request ends or its client disconnects.
pub(crate) struct Line {
    log: Log,
    began: Instant,
    record: RequestRecord,
    quiet: bool,
}

impl Line {
    /// Starts a line. A `quiet` route, such as a probe, is not logged.
    pub(crate) fn new(log: &Log, route: String, quiet: bool) -> Self {
        // nginx's status for a client that disconnected; replaced when the answer is complete.
        const CLIENT_CLOSED: u16 = 499;
        let record = RequestRecord {
            id: None,
            route,
            status: CLIENT_CLOSED,
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

    /// Adds prompt tokens that were found in the prefix cache.
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

    /// Records an answer.
    pub(crate) fn done(&mut self, status: StatusCode) {
        self.record.status = status.as_u16();
    }

    /// Records an error.
    pub(crate) fn failed(&mut self, error: &ApiError) {
        self.done(error.status);
        self.record.error = Some(error.message.clone());
    }
}

/// A request that ended with an error, and its log line.
pub(crate) struct RejectedRequest {
    pub(crate) error: ApiError,
    pub(crate) line: Line,
}

impl RejectedRequest {
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

/// Milliseconds since then, rounded to one decimal.
fn millis(since: Instant) -> f64 {
    (since.elapsed().as_secs_f64() * 1e4).round() / 10.0
}
