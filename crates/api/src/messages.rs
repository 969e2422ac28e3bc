//! Conversations, from a request to the text that a model reads.

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use models::Message;
use serde_json::{Value, json};

/// The text of a request's `messages`, up to where the answer begins.
pub(crate) fn text(fields: &mut Fields, app: &App) -> Result<String, ApiError> {
    let template = match &app.texts.template {
        Ok(template) => template,
        Err(why) => {
            let message =
                format!("this model answers no conversations: {why}; ask /v1/completions");
            return Err(ApiError::field("messages", message));
        }
    };
    let messages = match fields.take("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => messages,
        Some(value) => return Err(fields.wrong("messages", &value, "a list of messages")),
        None => return Err(fields.required("messages")),
    };
    let messages: Result<Vec<Message>, ApiError> =
        messages.into_iter().enumerate().map(|(at, value)| message(at, value)).collect();
    // What a template refuses is the request's fault: roles in an order that the model was not taught.
    template.render(&messages?).map_err(|error| ApiError::field("messages", error.to_string()))
}

fn message(at: usize, value: Value) -> Result<Message, ApiError> {
    let name = format!("messages[{at}]");
    let Value::Object(values) = value else {
        return Err(ApiError::field(&name, format!("`{name}` is {value}, wanted an object")));
    };
    let mut fields = Fields::new(values, format!("{name}."));
    let role = fields.text("role")?.ok_or_else(|| fields.required("role"))?;
    let content = match fields.take("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => parts_of(&parts, &fields)?,
        Some(value) => {
            return Err(fields.wrong("content", &value, "a string, or a list of text parts"));
        }
        None => return Err(fields.required("content")),
    };
    fields.end()?;
    Ok(Message { role, content })
}

/// The texts of parts, a line each, as vLLM joins them.
fn parts_of(parts: &[Value], fields: &Fields) -> Result<String, ApiError> {
    let text = |part: &Value| match part {
        Value::String(text) => Some(text.clone()),
        Value::Object(part) if part.get("type").is_some_and(|kind| kind == "text") => {
            part.get("text")?.as_str().map(str::to_owned)
        }
        _ => None,
    };
    let texts: Result<Vec<String>, ApiError> = parts
        .iter()
        .map(|part| {
            text(part).ok_or_else(|| {
                fields.wrong(
                    "content",
                    part,
                    r#"{"type": "text", "text": ".."}: the model reads text"#,
                )
            })
        })
        .collect();
    Ok(texts?.join("\n"))
}

/// Fields of conversations that clients send with the value that asks for nothing.
pub(crate) fn neutral(fields: &mut Fields) -> Result<(), ApiError> {
    fields.only("add_generation_prompt", &json!(true))?;
    fields.only("continue_final_message", &json!(false))
}
