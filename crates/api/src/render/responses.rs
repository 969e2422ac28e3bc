//! Renders answers in the format of OpenAI's Responses API.

use super::{CompleteAnswer, Renderer, Usage, push_typed_event};
use crate::answers::Delta;
use crate::app::{App, now};
use crate::error::ApiError;
use crate::parsers::Event;
use crate::probabilities::{self, ScoredToken};
use crate::requests::responses::ToolNames;
use crate::stored_responses::Turn;
use serde_json::{Value, json};
use std::sync::Arc;

/// Stores a response when it is complete.
pub(crate) struct ResponseSaver {
    /// The previous turns.
    pub(crate) turns: Vec<Arc<Turn>>,
    pub(crate) input: Vec<Value>,
}

pub(crate) struct ResponseRenderer {
    app: Arc<App>,
    /// The response without its output: the settings of the request, which the API repeats.
    response: Value,
    id: String,
    names: ToolNames,
    logprobs: bool,
    saver: Option<ResponseSaver>,
    /// Complete items.
    output: Vec<Value>,
    open: Option<Item>,
    finish: Option<&'static str>,
    sequence: u64,
}

/// The item that is being written.
#[derive(Debug)]
struct Item {
    id: String,
    kind: Kind,
    /// Its text, or the arguments of its call.
    text: String,
    logprobs: Vec<Value>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Message,
    Reasoning,
    Function {
        call: String,
        name: String,
        namespace: Option<String>,
    },
    /// A custom tool: its input is the only argument of the model's call.
    Custom {
        call: String,
        name: String,
    },
}

impl Item {
    fn part(&self) -> Value {
        match self.kind {
            Kind::Reasoning => json!({ "type": "reasoning_text", "text": self.text }),
            _ => json!({
                "type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs,
            }),
        }
    }

    /// The input of a custom tool: the only argument, or all text of the model if it wrote something else.
    fn input(&self) -> String {
        let arguments: Option<Value> = serde_json::from_str(&self.text).ok();
        let input = arguments.as_ref().and_then(|arguments| arguments["input"].as_str());
        input.unwrap_or(&self.text).to_owned()
    }

    fn json(&self, status: &str, started: bool) -> Value {
        let parts = |part: Value| if started { json!([part]) } else { json!([]) };
        let id = &self.id;
        match &self.kind {
            Kind::Message => json!({
                "id": id, "type": "message", "status": status, "role": "assistant",
                "content": parts(self.part()),
            }),
            Kind::Reasoning => json!({
                "id": id, "type": "reasoning", "status": status, "summary": [],
                "content": parts(self.part()), "encrypted_content": null,
            }),
            Kind::Function { call, name, namespace } => {
                let mut item = json!({
                    "id": id, "type": "function_call", "status": status, "call_id": call,
                    "name": name, "arguments": self.text,
                });
                if let Some(namespace) = namespace {
                    item["namespace"] = json!(namespace);
                }
                item
            }
            Kind::Custom { call, name } => json!({
                "id": id, "type": "custom_tool_call", "status": status, "call_id": call,
                "name": name, "input": if started { self.input() } else { String::new() },
            }),
        }
    }
}

impl ResponseRenderer {
    /// `response` has the settings of the request.
    pub(crate) fn new(
        app: &Arc<App>,
        mut response: Value,
        (names, logprobs): (ToolNames, bool),
        saver: Option<ResponseSaver>,
    ) -> Self {
        let id = app.id("resp_");
        response["id"] = json!(id);
        response["object"] = json!("response");
        response["created_at"] = json!(now());
        response["model"] = json!(app.name());
        Self {
            app: Arc::clone(app),
            response,
            id,
            names,
            logprobs,
            saver,
            output: Vec::new(),
            open: None,
            finish: None,
            sequence: 0,
        }
    }

    fn push(&mut self, kind: &str, mut document: Value, events: &mut String) {
        document["type"] = json!(kind);
        document["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        push_typed_event(events, &document);
    }

    /// The response with a status.
    fn snapshot(&self, status: &str, usage: Option<Usage>, error: Option<&ApiError>) -> Value {
        let mut response = self.response.clone();
        response["status"] = json!(status);
        response["output"] = json!(self.output);
        response["usage"] = usage.map_or(Value::Null, |usage| {
            json!({
                "input_tokens": usage.prompt,
                "input_tokens_details": { "cached_tokens": usage.cached, "cache_write_tokens": 0 },
                "output_tokens": usage.completion,
                "output_tokens_details": { "reasoning_tokens": usage.reasoning },
                "total_tokens": usage.prompt + usage.completion,
            })
        });
        response["error"] = error.map_or(
            Value::Null,
            |error| json!({ "code": "server_error", "message": error.message }),
        );
        response["incomplete_details"] = match status {
            "incomplete" => json!({ "reason": "max_output_tokens" }),
            _ => Value::Null,
        };
        response["completed_at"] = if status == "completed" { json!(now()) } else { Value::Null };
        response
    }

    /// The indices of the open item in an event.
    fn item_indices(&self) -> Value {
        let id = self.open.as_ref().map(|item| &item.id);
        json!({ "item_id": id, "output_index": self.output.len() })
    }

    /// The same with the index of the item's only part.
    fn part_indices(&self) -> Value {
        let mut place = self.item_indices();
        place["content_index"] = json!(0);
        place
    }

    fn begin_item(&mut self, kind: Kind, events: &mut String) {
        self.close("completed", events);
        let prefix = match kind {
            Kind::Message => "msg_",
            Kind::Reasoning => "rs_",
            Kind::Function { .. } => "fc_",
            Kind::Custom { .. } => "ctc_",
        };
        let id = self.app.id(prefix);
        let item = Item { id, kind, text: String::new(), logprobs: Vec::new() };
        let shown = item.json("in_progress", false);
        let part = matches!(item.kind, Kind::Message | Kind::Reasoning).then(|| item.part());
        self.open = Some(item);
        let document = json!({ "output_index": self.output.len(), "item": shown });
        self.push("response.output_item.added", document, events);
        if let Some(part) = part {
            let mut document = self.part_indices();
            document["part"] = part;
            self.push("response.content_part.added", document, events);
        }
    }

    /// Completes the open item.
    fn close(&mut self, status: &str, events: &mut String) {
        let (place, part) = (self.item_indices(), self.part_indices());
        let Some(item) = self.open.take() else { return };
        let with = |mut place: Value, name: &str, value: Value| {
            place[name] = value;
            place
        };
        match &item.kind {
            Kind::Message => {
                let done = with(part.clone(), "text", json!(item.text));
                let done = with(done, "logprobs", json!(item.logprobs));
                self.push("response.output_text.done", done, events);
                let done = with(part, "part", item.part());
                self.push("response.content_part.done", done, events);
            }
            Kind::Reasoning => {
                let done = with(part.clone(), "text", json!(item.text));
                self.push("response.reasoning_text.done", done, events);
                let done = with(part, "part", item.part());
                self.push("response.content_part.done", done, events);
            }
            Kind::Function { name, .. } => {
                let done = with(place, "arguments", json!(item.text));
                let done = with(done, "name", json!(name));
                self.push("response.function_call_arguments.done", done, events);
            }
            Kind::Custom { .. } => {
                let input = json!(item.input());
                let delta = with(place.clone(), "delta", input.clone());
                self.push("response.custom_tool_call_input.delta", delta, events);
                let done = with(place, "input", input);
                self.push("response.custom_tool_call_input.done", done, events);
            }
        }
        let item = item.json(status, true);
        let document = json!({ "output_index": self.output.len(), "item": item });
        self.push("response.output_item.done", document, events);
        self.output.push(item);
    }

    fn add(&mut self, event: &Event, chances: &mut Vec<Value>, events: &mut String) {
        let open = self.open.as_ref().map(|item| &item.kind);
        match (event, open) {
            (Event::Content(_), Some(Kind::Message))
            | (Event::Reasoning(_), Some(Kind::Reasoning))
            | (Event::CallArguments { .. }, _) => {}
            (Event::Content(_), _) => self.begin_item(Kind::Message, events),
            (Event::Reasoning(_), _) => self.begin_item(Kind::Reasoning, events),
            (Event::CallStart { id, name, .. }, _) => {
                let call = id.clone();
                let kind = if self.names.custom.contains(name) {
                    Kind::Custom { call, name: name.clone() }
                } else {
                    let (name, namespace) = self.names.find(name);
                    Kind::Function { call, name, namespace }
                };
                return self.begin_item(kind, events);
            }
        }
        let (place, part) = (self.item_indices(), self.part_indices());
        let Some(item) = &mut self.open else { return };
        let (kind, mut document, text) = match (&item.kind, event) {
            (Kind::Message, Event::Content(text)) => ("response.output_text.delta", part, text),
            (Kind::Reasoning, Event::Reasoning(text)) => {
                ("response.reasoning_text.delta", part, text)
            }
            (Kind::Function { .. }, Event::CallArguments { text, .. }) => {
                ("response.function_call_arguments.delta", place, text)
            }
            (Kind::Custom { .. }, Event::CallArguments { text, .. }) => {
                item.text += text;
                return;
            }
            _ => return,
        };
        item.text += text;
        document["delta"] = json!(text);
        if item.kind == Kind::Message {
            let chances = std::mem::take(chances);
            document["logprobs"] = json!(chances);
            item.logprobs.extend(chances);
        }
        self.push(kind, document, events);
    }

    fn chances(&self, chances: &[ScoredToken]) -> Vec<Value> {
        if !self.logprobs {
            return Vec::new();
        }
        let chances = probabilities::of_chat(chances, &self.app.texts.tokenizer);
        chances["content"].as_array().cloned().unwrap_or_default()
    }

    fn finish(&mut self, usage: Usage, events: &mut String) -> (&'static str, Value) {
        let status = if self.finish == Some("length") { "incomplete" } else { "completed" };
        self.close(status, events);
        let response = self.snapshot(status, Some(usage), None);
        if let Some(ResponseSaver { turns, input }) = self.saver.take() {
            self.app.responses.insert(&self.id, response.clone(), (turns, input));
        }
        (status, response)
    }
}

impl Renderer for ResponseRenderer {
    fn id(&self) -> &str {
        &self.id
    }

    fn begin(&mut self, _: Usage, events: &mut String) {
        let response = self.snapshot("in_progress", None, None);
        self.push("response.created", json!({ "response": response }), events);
        self.push("response.in_progress", json!({ "response": response }), events);
    }

    fn delta(&mut self, delta: &Delta, _: Usage, events: &mut String) {
        let mut chances = self.chances(&delta.chances);
        for event in &delta.events {
            self.add(event, &mut chances, events);
        }
        self.finish = delta.finish.or(self.finish);
    }

    fn end(&mut self, usage: Usage, events: &mut String) {
        let (status, response) = self.finish(usage, events);
        self.push(&format!("response.{status}"), json!({ "response": response }), events);
    }

    fn fail(&mut self, error: &ApiError, usage: Usage, events: &mut String) {
        let response = self.snapshot("failed", Some(usage), Some(error));
        self.push("response.failed", json!({ "response": response }), events);
    }

    fn document(&mut self, answers: Vec<CompleteAnswer>, usage: Usage) -> String {
        let mut ignored = String::new();
        for answer in answers {
            let mut chances = self.chances(&answer.chances);
            for event in &answer.events {
                self.add(event, &mut chances, &mut ignored);
            }
            self.finish = answer.finish;
        }
        self.finish(usage, &mut ignored).1.to_string()
    }
}
