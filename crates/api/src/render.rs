//! Writes answers in the format of an API: complete, or as server-sent events.

pub(crate) mod anthropic;
pub(crate) mod chat;
pub(crate) mod completion;
pub(crate) mod responses;

use crate::answers::{Answers, Delta};
use crate::error::{ApiError, ErrorShape};
use crate::parsers::{Event, Message};
use crate::probabilities::ScoredToken;
use crate::reply;
use axum::body::{Body, Bytes};
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use http_body::Frame;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Token counts of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) completion: usize,
    /// Prompt tokens that the prefix cache had.
    pub(crate) cached: usize,
    /// Reasoning tokens.
    pub(crate) reasoning: usize,
}

impl Usage {
    /// Updates the counts.
    fn update(&mut self, answers: &Answers) {
        self.prompt = answers.line.prompt_tokens();
        self.completion = answers.line.completion_tokens();
        self.cached = answers.line.cached_tokens();
    }

    /// Updates the counts with a delta and the tokens since the last one.
    fn update_with(&mut self, answers: &Answers, delta: &Delta) {
        let before = self.completion;
        self.update(answers);
        if delta.events.iter().any(|event| matches!(event, Event::Reasoning(_))) {
            self.reasoning += self.completion - before;
        }
    }

    /// The `usage` of chat and text completions.
    pub(crate) fn of_completion(&self) -> Value {
        let Self { prompt, completion, cached, reasoning } = self;
        let mut usage = json!({
            "prompt_tokens": prompt, "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": { "cached_tokens": cached },
        });
        if *reasoning > 0 {
            usage["completion_tokens_details"] = json!({ "reasoning_tokens": reasoning });
        }
        usage
    }
}

/// A complete answer.
#[derive(Debug, Default)]
pub(crate) struct CompleteAnswer {
    /// Events; adjacent ones of a kind are joined.
    pub(crate) events: Vec<Event>,
    pub(crate) chances: Vec<ScoredToken>,
    pub(crate) finish: Option<&'static str>,
    /// The stop string that ended it.
    pub(crate) stop: Option<String>,
}

impl CompleteAnswer {
    fn add(&mut self, delta: Delta) {
        for event in delta.events {
            match (self.events.last_mut(), event) {
                (Some(Event::Content(all)), Event::Content(more)) => *all += &more,
                (Some(Event::Reasoning(all)), Event::Reasoning(more)) => *all += &more,
                (
                    Some(Event::CallArguments { index, text: all }),
                    Event::CallArguments { index: same, text: more },
                ) if *index == same => *all += &more,
                (_, event) => self.events.push(event),
            }
        }
        self.chances.extend(delta.chances);
        self.finish = delta.finish;
        self.stop = delta.stop.or(self.stop.take());
    }

    /// The text, the reasoning and the calls, each joined.
    fn message(&self) -> Message {
        let mut message = Message::default();
        for event in &self.events {
            message.add(event.clone());
        }
        message
    }
}

/// An API's format for the answers to one request.
pub(crate) trait Renderer: Send {
    /// The id in the answer.
    fn id(&self) -> &str;
    /// The format of errors.
    fn errors(&self) -> ErrorShape {
        ErrorShape::OpenAi
    }
    /// Events before the first delta.
    fn begin(&mut self, _usage: Usage, _events: &mut String) {}
    /// Events of a delta.
    fn delta(&mut self, delta: &Delta, usage: Usage, events: &mut String);
    /// Events after the last delta.
    fn end(&mut self, usage: Usage, events: &mut String);
    /// Events for an error after the stream has begun.
    fn fail(&mut self, error: &ApiError, usage: Usage, events: &mut String);
    /// The text of one JSON document with the whole answers, in the order of their indices.
    fn document(&mut self, answers: Vec<CompleteAnswer>, usage: Usage) -> String;
}

/// Adds an event without a name.
pub(crate) fn push_event(events: &mut String, document: &Value) {
    *events += &format!("data: {document}\n\n");
}

/// Adds an event that is named by its type.
pub(crate) fn push_typed_event(events: &mut String, document: &Value) {
    let name = document["type"].as_str().unwrap_or("message");
    *events += &format!("event: {name}\ndata: {document}\n\n");
}

/// The last event of OpenAI's chat and text completions.
pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// All answers in one document, once the last of them has ended.
pub(crate) async fn whole(
    mut renderer: Box<dyn Renderer>,
    mut answers: Answers,
    count: usize,
) -> Response {
    let mut usage = Usage::default();
    let mut all: Vec<CompleteAnswer> = (0..count).map(|_| CompleteAnswer::default()).collect();
    while let Some(next) = answers.next().await {
        match next {
            Ok(delta) => {
                usage.update_with(&answers, &delta);
                all[delta.index].add(delta);
            }
            Err(error) => {
                answers.line.failed(&error);
                return error.response(renderer.errors());
            }
        }
    }
    answers.line.done(StatusCode::OK);
    usage.update(&answers);
    reply::of(StatusCode::OK, "application/json", renderer.document(all, usage))
}

/// Streamed answers.
pub(crate) fn stream(renderer: Box<dyn Renderer>, answers: Answers) -> Response {
    let usage = Usage::default();
    let events = Events { renderer, answers: Some(answers), usage, begun: false };
    let mut response = reply::of(StatusCode::OK, "text/event-stream", Body::new(events));
    // Proxies must not buffer them.
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The body of a streamed answer. When the client disconnects it is dropped, which cancels its sequences.
struct Events {
    renderer: Box<dyn Renderer>,
    /// None after the last event.
    answers: Option<Answers>,
    usage: Usage,
    begun: bool,
}

impl Events {
    /// The last events, after all answers or an error.
    fn end(&mut self, failed: Option<ApiError>, events: &mut String) {
        let Some(mut answers) = self.answers.take() else { return };
        self.usage.update(&answers);
        let usage = self.usage;
        match failed {
            Some(error) => {
                answers.line.failed(&error);
                self.renderer.fail(&error, usage, events);
            }
            None => {
                answers.line.done(StatusCode::OK);
                self.renderer.end(usage, events);
            }
        }
    }
}

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        // Events that are ready are sent in one frame.
        let mut events = String::new();
        while let Some(answers) = &mut this.answers {
            let next = answers.poll_next(context);
            if !std::mem::replace(&mut this.begun, true) {
                this.usage.update(answers);
                this.renderer.begin(this.usage, &mut events);
            }
            match next {
                Poll::Ready(Some(Ok(delta))) => {
                    this.usage.update_with(answers, &delta);
                    this.renderer.delta(&delta, this.usage, &mut events);
                }
                Poll::Ready(Some(Err(error))) => this.end(Some(error), &mut events),
                Poll::Ready(None) => this.end(None, &mut events),
                Poll::Pending if events.is_empty() => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        match events.is_empty() {
            true => Poll::Ready(None),
            false => Poll::Ready(Some(Ok(Frame::data(Bytes::from(events))))),
        }
    }
}
