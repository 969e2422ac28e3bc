//! Answers on their way: as server-sent events, or whole.

use crate::answers::{Answers, Delta};
use crate::app::{App, now};
use crate::calls::Call;
use crate::error::ApiError;
use crate::probabilities::{self, Chance};
use crate::reply;
use axum::body::{Body, Bytes};
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use http_body::Frame;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Which of OpenAI's forms answers have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Chat,
    Completion,
}

/// What all parts of an answer say of it.
pub(crate) struct Head {
    pub(crate) form: Form,
    pub(crate) id: String,
    pub(crate) app: Arc<App>,
    /// Whether log probabilities were asked for.
    pub(crate) logprobs: bool,
    created: u64,
}

impl Head {
    pub(crate) fn new(form: Form, app: &Arc<App>, logprobs: bool) -> Self {
        let name = match form {
            Form::Chat => "chatcmpl",
            Form::Completion => "cmpl",
        };
        let id = format!("{name}-{:016x}{:016x}", app.random(), app.random());
        Self { form, id, app: Arc::clone(app), logprobs, created: now() }
    }

    fn document(&self, streamed: bool, choices: Vec<Value>) -> Value {
        let object = match (self.form, streamed) {
            (Form::Chat, true) => "chat.completion.chunk",
            (Form::Chat, false) => "chat.completion",
            (Form::Completion, _) => "text_completion",
        };
        json!({
            "id": self.id, "object": object, "created": self.created,
            "model": self.app.name(), "choices": choices,
        })
    }

    fn chances(&self, chances: &[Chance]) -> Value {
        let tokenizer = &self.app.texts.tokenizer;
        match self.form {
            _ if !self.logprobs => Value::Null,
            Form::Chat => probabilities::of_chat(chances, tokenizer),
            Form::Completion => probabilities::of_completion(chances, tokenizer),
        }
    }

    /// Calls, each whole; in chunks with their places.
    fn calls(&self, calls: &[Call], streamed: bool) -> Value {
        let calls = calls.iter().map(|call| {
            let Call { index, id, name, arguments } = call;
            let random = || format!("call_{:016x}", self.app.random());
            let id = id.clone().unwrap_or_else(random);
            let function = json!({ "name": name, "arguments": arguments });
            match streamed {
                true => {
                    json!({ "index": index, "id": id, "type": "function", "function": function })
                }
                false => json!({ "id": id, "type": "function", "function": function }),
            }
        });
        calls.collect()
    }

    /// A choice of a chunk; `first` for the first of its answer.
    fn chunk(&self, delta: &Delta, first: bool) -> Value {
        let Delta { index, text, calls, chances, finish } = delta;
        let logprobs = self.chances(chances);
        match self.form {
            Form::Chat => {
                let mut said = json!({ "content": text });
                if !calls.is_empty() {
                    said = json!({ "tool_calls": self.calls(calls, true) });
                    if !text.is_empty() {
                        said["content"] = json!(text);
                    }
                }
                if first {
                    said["role"] = json!("assistant");
                }
                json!({ "index": index, "delta": said, "logprobs": logprobs, "finish_reason": finish })
            }
            Form::Completion => {
                json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish })
            }
        }
    }

    /// A choice of a whole answer.
    fn whole(&self, delta: &Delta) -> Value {
        let Delta { index, text, calls, chances, finish } = delta;
        let logprobs = self.chances(chances);
        match self.form {
            Form::Chat => {
                let mut message = json!({ "role": "assistant", "content": text, "refusal": null });
                if !calls.is_empty() {
                    message["tool_calls"] = self.calls(calls, false);
                    if text.is_empty() {
                        message["content"] = Value::Null;
                    }
                }
                json!({ "index": index, "message": message, "logprobs": logprobs, "finish_reason": finish })
            }
            Form::Completion => {
                json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish })
            }
        }
    }
}

fn usage(answers: &Answers) -> Value {
    let (prompt, completion) = (answers.line.prompt_tokens(), answers.line.completion_tokens());
    json!({
        "prompt_tokens": prompt, "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": answers.line.cached_tokens() },
    })
}

/// All answers in one document, once the last of them has ended.
pub(crate) async fn whole(head: &Head, mut answers: Answers, count: usize) -> Response {
    let empty = |index| Delta { index, ..Delta::default() };
    let mut all: Vec<Delta> = (0..count).map(empty).collect();
    while let Some(next) = answers.next().await {
        match next {
            Ok(delta) => {
                let answer = &mut all[delta.index];
                answer.text += &delta.text;
                answer.calls.extend(delta.calls);
                answer.chances.extend(delta.chances);
                answer.finish = delta.finish;
            }
            Err(error) => {
                answers.line.failed(&error);
                return error.response();
            }
        }
    }
    answers.line.done(StatusCode::OK);
    let mut document = head.document(false, all.iter().map(|delta| head.whole(delta)).collect());
    document["usage"] = usage(&answers);
    reply::good(&document)
}

/// Answers as they come.
pub(crate) fn stream(head: Head, answers: Answers, count: usize, include_usage: bool) -> Response {
    let began = vec![false; count];
    let events = Events { head, answers: Some(answers), include_usage, began };
    let mut response = reply::of(StatusCode::OK, "text/event-stream", Body::new(events));
    // Nor may a proxy collect them.
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The body of a streamed answer. When the client goes away it is dropped, and what it waits for is cancelled with it.
struct Events {
    head: Head,
    /// None when the last event was made.
    answers: Option<Answers>,
    include_usage: bool,
    /// Which answers have begun.
    began: Vec<bool>,
}

impl Events {
    fn event(&self, mut document: Value, usage: Option<Value>) -> String {
        if self.include_usage {
            document["usage"] = usage.unwrap_or(Value::Null);
        }
        format!("data: {document}\n\n")
    }

    fn of(&mut self, delta: &Delta) -> String {
        let first = !std::mem::replace(&mut self.began[delta.index], true);
        let choice = self.head.chunk(delta, first);
        self.event(self.head.document(true, vec![choice]), None)
    }

    /// The last events: all answers have ended, or something broke off.
    fn end(&mut self, failed: Option<ApiError>) -> String {
        let Some(mut answers) = self.answers.take() else { return String::new() };
        let mut text = String::new();
        match failed {
            Some(error) => {
                answers.line.failed(&error);
                text += &format!("data: {}\n\n", error.json());
            }
            None => {
                answers.line.done(StatusCode::OK);
                if self.include_usage {
                    let document = self.head.document(true, Vec::new());
                    text += &self.event(document, Some(usage(&answers)));
                }
            }
        }
        text + "data: [DONE]\n\n"
    }
}

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        // What is there goes out together.
        let mut text = String::new();
        while let Some(answers) = &mut self.answers {
            match answers.poll_next(context) {
                Poll::Ready(Some(Ok(delta))) => text += &self.of(&delta),
                Poll::Ready(Some(Err(error))) => text += &self.end(Some(error)),
                Poll::Ready(None) => text += &self.end(None),
                Poll::Pending if text.is_empty() => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        match text.is_empty() {
            true => Poll::Ready(None),
            false => Poll::Ready(Some(Ok(Frame::data(Bytes::from(text))))),
        }
    }
}
