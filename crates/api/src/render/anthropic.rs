//! Anthropic's Messages.

use super::{CompleteAnswer, Renderer, Usage, push_typed_event};
use crate::answers::Delta;
use crate::app::App;
use crate::error::{ApiError, ErrorShape};
use crate::parsers::Event;
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) struct AnthropicRenderer {
    app: Arc<App>,
    id: String,
    blocks: Vec<Block>,
    /// Whether the last block is still open.
    open: bool,
    finish: Option<&'static str>,
    stop: Option<String>,
}

/// A content block.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Block {
    Text(String),
    Thinking(String),
    ToolUse { id: String, name: String, input: String },
}

impl Block {
    /// The block as JSON text. The input of a tool is the model's own text, in which numbers keep their digits.
    fn json(&self) -> String {
        match self {
            Self::Text(text) => json!({ "type": "text", "text": text }).to_string(),
            Self::Thinking(text) => {
                json!({ "type": "thinking", "thinking": text, "signature": "" }).to_string()
            }
            Self::ToolUse { id, name, input } => {
                let whole =
                    serde_json::from_str::<Value>(input).is_ok_and(|input| input.is_object());
                let input = if whole { input } else { "{}" };
                let (id, name) = (json!(id), json!(name));
                format!(r#"{{"type":"tool_use","id":{id},"name":{name},"input":{input}}}"#)
            }
        }
    }
}

impl AnthropicRenderer {
    pub(crate) fn new(app: &Arc<App>) -> Self {
        let (app, id) = (Arc::clone(app), app.id("msg_"));
        Self { app, id, blocks: Vec::new(), open: false, finish: None, stop: None }
    }

    fn usage(usage: Usage) -> Value {
        // Anthropic counts cached tokens separately.
        json!({
            "input_tokens": usage.prompt - usage.cached.min(usage.prompt),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached,
            "output_tokens": usage.completion,
        })
    }

    fn stop_reason(&self) -> &'static str {
        match self.finish {
            Some("length") => "max_tokens",
            Some("tool_calls") => "tool_use",
            _ if self.stop.is_some() => "stop_sequence",
            _ => "end_turn",
        }
    }

    fn index(&self) -> usize {
        self.blocks.len().saturating_sub(1)
    }

    fn close(&mut self, events: &mut String) {
        if std::mem::take(&mut self.open) {
            let index = self.index();
            if matches!(self.blocks.last(), Some(Block::Thinking(_))) {
                let delta = json!({ "type": "signature_delta", "signature": "" });
                push_typed_event(
                    events,
                    &json!({ "type": "content_block_delta", "index": index, "delta": delta }),
                );
            }
            push_typed_event(events, &json!({ "type": "content_block_stop", "index": index }));
        }
    }

    fn begin_block(&mut self, block: Block, events: &mut String) {
        self.close(events);
        let shown = match &block {
            Block::Text(_) => json!({ "type": "text", "text": "" }),
            Block::Thinking(_) => json!({ "type": "thinking", "thinking": "", "signature": "" }),
            Block::ToolUse { id, name, .. } => {
                json!({ "type": "tool_use", "id": id, "name": name, "input": {} })
            }
        };
        self.blocks.push(block);
        self.open = true;
        let index = self.index();
        push_typed_event(
            events,
            &json!({ "type": "content_block_start", "index": index, "content_block": shown }),
        );
    }

    fn add(&mut self, event: &Event, events: &mut String) {
        match (event, self.blocks.last().filter(|_| self.open)) {
            (Event::Content(_), Some(Block::Text(_)))
            | (Event::Reasoning(_), Some(Block::Thinking(_)))
            | (Event::CallArguments { .. }, _) => {}
            (Event::Content(_), _) => self.begin_block(Block::Text(String::new()), events),
            (Event::Reasoning(_), _) => self.begin_block(Block::Thinking(String::new()), events),
            (Event::CallStart { id, name, .. }, _) => {
                let (id, name, input) = (id.clone(), name.clone(), String::new());
                return self.begin_block(Block::ToolUse { id, name, input }, events);
            }
        }
        let delta = match (self.blocks.last_mut(), event) {
            (Some(Block::Text(all)), Event::Content(text)) => {
                *all += text;
                json!({ "type": "text_delta", "text": text })
            }
            (Some(Block::Thinking(all)), Event::Reasoning(text)) => {
                *all += text;
                json!({ "type": "thinking_delta", "thinking": text })
            }
            (Some(Block::ToolUse { input, .. }), Event::CallArguments { text, .. }) => {
                *input += text;
                json!({ "type": "input_json_delta", "partial_json": text })
            }
            _ => return,
        };
        let index = self.index();
        push_typed_event(
            events,
            &json!({ "type": "content_block_delta", "index": index, "delta": delta }),
        );
    }
}

impl Renderer for AnthropicRenderer {
    fn id(&self) -> &str {
        &self.id
    }

    fn errors(&self) -> ErrorShape {
        ErrorShape::Anthropic
    }

    fn begin(&mut self, usage: Usage, events: &mut String) {
        let message = json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.app.name(),
            "content": [], "stop_reason": null, "stop_sequence": null, "usage": Self::usage(usage),
        });
        push_typed_event(events, &json!({ "type": "message_start", "message": message }));
    }

    fn delta(&mut self, delta: &Delta, _: Usage, events: &mut String) {
        for event in &delta.events {
            self.add(event, events);
        }
        self.finish = delta.finish.or(self.finish);
        self.stop = delta.stop.clone().or(self.stop.take());
    }

    fn end(&mut self, usage: Usage, events: &mut String) {
        self.close(events);
        let delta = json!({ "stop_reason": self.stop_reason(), "stop_sequence": self.stop });
        let usage = Self::usage(usage);
        push_typed_event(
            events,
            &json!({ "type": "message_delta", "delta": delta, "usage": usage }),
        );
        push_typed_event(events, &json!({ "type": "message_stop" }));
    }

    fn fail(&mut self, error: &ApiError, _: Usage, events: &mut String) {
        push_typed_event(events, &error.json(ErrorShape::Anthropic));
    }

    fn document(&mut self, answers: Vec<CompleteAnswer>, usage: Usage) -> String {
        let mut ignored = String::new();
        for whole in answers {
            for event in &whole.events {
                self.add(event, &mut ignored);
            }
            (self.finish, self.stop) = (whole.finish, whole.stop);
        }
        let head = json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.app.name(),
            "stop_reason": self.stop_reason(), "stop_sequence": self.stop,
            "usage": Self::usage(usage),
        });
        let blocks: Vec<String> = self.blocks.iter().map(Block::json).collect();
        // The blocks are JSON text already: they are inserted into the text of the object.
        let head = head.to_string();
        let head = head.strip_suffix('}').unwrap_or(&head);
        format!(r#"{head},"content":[{}]}}"#, blocks.join(","))
    }
}
