//! Requests of other APIs, converted to the fields of a chat completion.

pub(crate) mod anthropic;
pub(crate) mod responses;

use crate::error::ApiError;
use crate::fields::Fields;
use serde_json::{Map, Value, json};

/// The messages of a chat completion under construction.
#[derive(Debug, Default)]
struct Conversation {
    messages: Vec<Value>,
    /// Reasoning for the next message or call of the assistant.
    reasoning: String,
}

impl Conversation {
    /// Adds a message with text.
    fn text(&mut self, role: &str, text: String) {
        let mut message = json!({ "role": role, "content": text });
        if role == "assistant" {
            self.attach_reasoning(&mut message);
        }
        self.messages.push(message);
    }

    /// Adds text to the system message, or a message if the conversation has started.
    fn system(&mut self, text: String) {
        match self.messages.last_mut() {
            Some(message) if message["role"] == "system" => {
                let before = message["content"].as_str().unwrap_or_default();
                message["content"] = json!(format!("{before}\n\n{text}"));
            }
            _ => self.text("system", text),
        }
    }

    fn reasoning(&mut self, text: &str) {
        self.reasoning += text;
    }

    /// Adds a call to the assistant's message, or starts one.
    fn call(&mut self, id: &str, name: &str, arguments: &str) {
        let function = json!({ "name": name, "arguments": arguments });
        let call = json!({ "id": id, "type": "function", "function": function });
        let open = self.messages.last_mut().filter(|message| message["role"] == "assistant");
        match open.filter(|_| self.reasoning.is_empty()) {
            Some(message) => match message["tool_calls"].as_array_mut() {
                Some(calls) => calls.push(call),
                None => message["tool_calls"] = json!([call]),
            },
            None => {
                let mut message =
                    json!({ "role": "assistant", "content": null, "tool_calls": [call] });
                self.attach_reasoning(&mut message);
                self.messages.push(message);
            }
        }
    }

    fn result(&mut self, id: &str, text: &str) {
        self.messages.push(json!({ "role": "tool", "tool_call_id": id, "content": text }));
    }

    fn attach_reasoning(&mut self, message: &mut Value) {
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = json!(std::mem::take(&mut self.reasoning));
        }
    }
}

/// The text of a string, or of a list of parts that have text.
fn text_of(name: &str, value: &Value) -> Result<String, ApiError> {
    let parts = match value {
        Value::String(text) => return Ok(text.clone()),
        Value::Null => return Ok(String::new()),
        Value::Array(parts) => parts,
        _ => return Err(wrong(name, value, "a string or a list of text parts")),
    };
    let text = |(at, part): (usize, &Value)| {
        let text = match part["type"].as_str() {
            Some("refusal") => &part["refusal"],
            Some("text" | "input_text" | "output_text" | "summary_text" | "reasoning_text") => {
                &part["text"]
            }
            _ => &Value::Null,
        };
        let wanted = "a part with text: the model reads text only";
        let text = text.as_str().or(part.as_str()).map(str::to_owned);
        text.ok_or_else(|| wrong(&format!("{name}[{at}]"), part, wanted))
    };
    let texts = parts.iter().enumerate().map(text).collect::<Result<Vec<_>, _>>()?;
    Ok(texts.join("\n"))
}

fn wrong(name: &str, value: &Value, wanted: &str) -> ApiError {
    Fields::new(Map::new(), String::new()).wrong(name, value, wanted)
}

/// A string field of an object.
fn string<'a>(name: &str, object: &'a Value, field: &str) -> Result<&'a str, ApiError> {
    let name = || format!("{name}.{field}");
    match &object[field] {
        Value::String(text) => Ok(text),
        Value::Null => Err(ApiError::field(&name(), format!("`{}` is missing", name()))
            .with_code("missing_required_parameter")),
        value => Err(wrong(&name(), value, "a string").with_code("invalid_type")),
    }
}
