//! OpenAI's chat completions.

use super::{CompleteAnswer, DONE, Renderer, Usage, push_event};
use crate::answers::Delta;
use crate::app::{App, now};
use crate::error::{ApiError, ErrorShape};
use crate::parsers::{Call, Event, Message};
use crate::probabilities::{self, ScoredToken};
use crate::sampling::StreamUsage;
use serde_json::{Map, Value, json};
use std::sync::Arc;

pub(crate) struct ChatRenderer {
    app: Arc<App>,
    id: String,
    created: u64,
    logprobs: bool,
    usage: StreamUsage,
    /// Whether each answer has started.
    begun: Vec<bool>,
}

impl ChatRenderer {
    pub(crate) fn new(app: &Arc<App>, logprobs: bool, usage: StreamUsage, count: usize) -> Self {
        let (app, id) = (Arc::clone(app), app.id("chatcmpl-"));
        Self { app, id, created: now(), logprobs, usage, begun: vec![false; count] }
    }

    fn head(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created,
            "model": self.app.name(), "choices": choices,
        })
    }

    fn chunk(&self, choices: Vec<Value>, usage: Option<Usage>) -> Value {
        let mut chunk = self.head("chat.completion.chunk", choices);
        if self.usage != StreamUsage::Never {
            chunk["usage"] = usage.map_or(Value::Null, |usage| usage.of_completion());
        }
        chunk
    }

    fn chances(&self, chances: &[ScoredToken]) -> Value {
        match self.logprobs {
            true => probabilities::of_chat(chances, &self.app.texts.tokenizer),
            false => Value::Null,
        }
    }
}

impl Renderer for ChatRenderer {
    fn id(&self) -> &str {
        &self.id
    }

    fn delta(&mut self, delta: &Delta, usage: Usage, events: &mut String) {
        let Delta { index, chances, finish, .. } = delta;
        let mut said = delta_of(&delta.events);
        if !std::mem::replace(&mut self.begun[*index], true) {
            said.insert("role".to_owned(), json!("assistant"));
        }
        let choice = json!({
            "index": index, "delta": said, "logprobs": self.chances(chances),
            "finish_reason": finish,
        });
        let usage = (self.usage == StreamUsage::Every).then_some(usage);
        push_event(events, &self.chunk(vec![choice], usage));
    }

    fn end(&mut self, usage: Usage, events: &mut String) {
        if self.usage != StreamUsage::Never {
            push_event(events, &self.chunk(Vec::new(), Some(usage)));
        }
        *events += DONE;
    }

    fn fail(&mut self, error: &ApiError, _: Usage, events: &mut String) {
        push_event(events, &error.json(ErrorShape::OpenAi));
        *events += DONE;
    }

    fn document(&mut self, answers: Vec<CompleteAnswer>, usage: Usage) -> String {
        let choice = |(index, whole): (usize, CompleteAnswer)| {
            json!({
                "index": index, "message": message_of(&whole.message()),
                "logprobs": self.chances(&whole.chances), "finish_reason": whole.finish,
            })
        };
        let choices = answers.into_iter().enumerate().map(choice).collect();
        let mut document = self.head("chat.completion", choices);
        document["usage"] = usage.of_completion();
        document.to_string()
    }
}

/// The `delta` of a chunk.
fn delta_of(events: &[Event]) -> Map<String, Value> {
    let (mut content, mut reasoning) = (String::new(), String::new());
    let mut calls: Vec<Value> = Vec::new();
    for event in events {
        match event {
            Event::Content(text) => content += text,
            Event::Reasoning(text) => reasoning += text,
            Event::CallStart { index, id, name } => {
                let function = json!({ "name": name, "arguments": "" });
                calls.push(json!({
                    "index": index, "id": id, "type": "function", "function": function,
                }));
            }
            Event::CallArguments { index, text } => match calls.last_mut() {
                Some(call) if call["index"] == *index => {
                    let arguments = &mut call["function"]["arguments"];
                    *arguments = json!(arguments.as_str().unwrap_or_default().to_owned() + text);
                }
                _ => calls.push(json!({ "index": index, "function": { "arguments": text } })),
            },
        }
    }
    let mut said = Map::new();
    if !reasoning.is_empty() {
        said.insert("reasoning_content".to_owned(), json!(reasoning));
        said.insert("reasoning".to_owned(), json!(reasoning));
    }
    if !content.is_empty() || (calls.is_empty() && reasoning.is_empty()) {
        said.insert("content".to_owned(), json!(content));
    }
    if !calls.is_empty() {
        said.insert("tool_calls".to_owned(), json!(calls));
    }
    said
}

/// The `message` of a complete answer.
fn message_of(message: &Message) -> Value {
    let Message { content, reasoning, calls } = message;
    let mut said = json!({ "role": "assistant", "content": content, "refusal": null });
    if content.is_empty() && !(reasoning.is_empty() && calls.is_empty()) {
        said["content"] = Value::Null;
    }
    if !reasoning.is_empty() {
        said["reasoning_content"] = json!(reasoning);
        said["reasoning"] = json!(reasoning);
    }
    if !calls.is_empty() {
        let call = |Call { id, name, arguments }: &Call| {
            let function = json!({ "name": name, "arguments": arguments });
            json!({ "id": id, "type": "function", "function": function })
        };
        said["tool_calls"] = calls.iter().map(call).collect();
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_come_in_chunks_by_their_index() {
        let start =
            |index, id: &str| Event::CallStart { index, id: id.to_owned(), name: "f".to_owned() };
        let arguments = |index, text: &str| Event::CallArguments { index, text: text.to_owned() };
        let said =
            delta_of(&[arguments(0, "1}"), start(1, "b"), arguments(1, "{"), arguments(1, "}")]);
        let want = json!({ "tool_calls": [
            { "index": 0, "function": { "arguments": "1}" } },
            { "index": 1, "id": "b", "type": "function", "function": { "name": "f", "arguments": "{}" } },
        ]});
        assert_eq!(Value::Object(said), want);
        let said = delta_of(&[Event::Reasoning("hm".to_owned()), Event::Content("yes".to_owned())]);
        let want = json!({ "reasoning_content": "hm", "reasoning": "hm", "content": "yes" });
        assert_eq!(Value::Object(said), want);
        assert_eq!(Value::Object(delta_of(&[])), json!({ "content": "" }));
    }
}
