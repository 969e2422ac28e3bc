//! Anthropic's messages.

use super::{Conversation, string, text_of, wrong};
use crate::error::ApiError;
use crate::fields::Fields;
use serde_json::{Map, Value, json};

/// The conversation, the tools and the structure of the answer, as fields of a chat completion.
pub(crate) fn to_chat(fields: &mut Fields) -> Result<Fields, ApiError> {
    let mut chat = Map::new();
    let mut conversation = Conversation::default();
    if let Some(system) = fields.take("system") {
        conversation.system(text_of("system", &system)?);
    }
    let messages = match fields.take("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => messages,
        Some(value) => return Err(fields.wrong("messages", &value, "a list of messages")),
        None => return Err(fields.required("messages")),
    };
    if messages.last().is_some_and(|message| message["role"] == "assistant") {
        let message = "the last message is the assistant's: an answer is a separate message";
        return Err(ApiError::field("messages", message));
    }
    for (at, message) in messages.iter().enumerate() {
        add(&mut conversation, &format!("messages[{at}]"), message)?;
    }
    chat.insert("messages".to_owned(), Value::Array(conversation.messages));
    if let Some(tools) = fields.take("tools") {
        chat.insert("tools".to_owned(), tools_of(&tools)?);
    }
    if let Some(choice) = fields.take("tool_choice") {
        if let Some(single) = choice["disable_parallel_tool_use"].as_bool() {
            chat.insert("parallel_tool_calls".to_owned(), json!(!single));
        }
        chat.insert("tool_choice".to_owned(), choice_of(&choice)?);
    }
    if let Some(thinking) = fields.take("thinking") {
        let enabled = match thinking["type"].as_str() {
            Some("disabled") => false,
            Some("enabled" | "adaptive" | "between_tools") => true,
            _ => {
                return Err(wrong("thinking", &thinking, r#"{"type": "enabled"} or "disabled""#));
            }
        };
        let switch = json!({ "enable_thinking": enabled });
        chat.insert("chat_template_kwargs".to_owned(), switch);
    }
    if let Some(mut output) = fields.object("output_config")? {
        if let Some(effort) = output.take("effort") {
            chat.insert("reasoning_effort".to_owned(), effort);
        }
        if let Some(format) = output.take("format") {
            if format["type"] != "json_schema" {
                return Err(wrong("output_config.format", &format, r#"{"type": "json_schema"}"#));
            }
            let schema =
                json!({ "type": "json_schema", "json_schema": { "schema": format["schema"] } });
            chat.insert("response_format".to_owned(), schema);
        }
        output.end()?;
    }
    Ok(Fields::new(chat, String::new()))
}

fn add(conversation: &mut Conversation, name: &str, message: &Value) -> Result<(), ApiError> {
    let role = string(name, message, "role")?;
    if !["user", "assistant", "system"].contains(&role) {
        return Err(wrong(&format!("{name}.role"), &json!(role), "`user` or `assistant`"));
    }
    let blocks = match &message["content"] {
        Value::String(text) => {
            conversation.text(role, text.clone());
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        value => {
            let wanted = "a string or a list of content blocks";
            return Err(wrong(&format!("{name}.content"), value, wanted));
        }
    };
    // Adjacent text is one message.
    let mut text: Vec<&str> = Vec::new();
    let flush = |conversation: &mut Conversation, text: &mut Vec<&str>| {
        if !text.is_empty() {
            conversation.text(role, std::mem::take(text).join("\n"));
        }
    };
    for (at, block) in blocks.iter().enumerate() {
        let name = format!("{name}.content[{at}]");
        match string(&name, block, "type")? {
            "text" => text.push(string(&name, block, "text")?),
            "thinking" => conversation.reasoning(string(&name, block, "thinking")?),
            // Only the server that encrypted it can read it.
            "redacted_thinking" => {}
            "tool_use" => {
                flush(conversation, &mut text);
                let (id, tool) = (string(&name, block, "id")?, string(&name, block, "name")?);
                conversation.call(id, tool, &block["input"].to_string());
            }
            "tool_result" => {
                flush(conversation, &mut text);
                let said = text_of(&format!("{name}.content"), &block["content"])?;
                conversation.result(string(&name, block, "tool_use_id")?, &said);
            }
            _ => {
                let wanted = "a block of type text, thinking, tool_use or tool_result: the model reads text only";
                return Err(wrong(&name, block, wanted));
            }
        }
    }
    flush(conversation, &mut text);
    Ok(())
}

fn tools_of(tools: &Value) -> Result<Value, ApiError> {
    let Some(tools) = tools.as_array() else {
        return Err(wrong("tools", tools, "a list of tools"));
    };
    let tool = |(at, tool): (usize, &Value)| {
        let name = format!("tools[{at}]");
        if !tool["type"].is_null() && tool["type"] != "custom" {
            let wanted = "a tool with an `input_schema`: the server runs no tools itself";
            return Err(wrong(&name, tool, wanted).with_code("unsupported_value"));
        }
        let mut function = json!({ "name": string(&name, tool, "name")? });
        if let Value::String(description) = &tool["description"] {
            function["description"] = json!(description);
        }
        if let Value::Object(schema) = &tool["input_schema"] {
            function["parameters"] = json!(schema);
        }
        Ok(json!({ "type": "function", "function": function }))
    };
    tools.iter().enumerate().map(tool).collect()
}

fn choice_of(choice: &Value) -> Result<Value, ApiError> {
    Ok(match choice["type"].as_str() {
        Some("auto") => json!("auto"),
        Some("any") => json!("required"),
        Some("none") => json!("none"),
        Some("tool") => {
            let name = string("tool_choice", choice, "name")?;
            json!({ "type": "function", "function": { "name": name } })
        }
        _ => return Err(wrong("tool_choice", choice, "a type of auto, any, tool or none")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(body: &Value) -> Result<Value, ApiError> {
        let Value::Object(values) = body.clone() else { panic!("{body}") };
        to_chat(&mut Fields::new(values, String::new())).map(Fields::into_value)
    }

    #[test]
    fn blocks_become_messages_calls_and_results() {
        let chat = converted(&json!({
            "system": [{ "type": "text", "text": "be brief", "cache_control": { "type": "ephemeral" } }],
            "messages": [
                { "role": "user", "content": "rain?" },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "hm", "signature": "" },
                    { "type": "text", "text": "I look." },
                    { "type": "tool_use", "id": "a", "name": "weather", "input": { "place": "Ulm" } },
                    { "type": "tool_use", "id": "b", "name": "weather", "input": {} },
                ]},
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "a", "content": [{ "type": "text", "text": "none" }] },
                    { "type": "tool_result", "tool_use_id": "b", "is_error": true },
                    { "type": "text", "text": "and" }, { "type": "text", "text": "now?" },
                ]},
            ],
            "tools": [{ "name": "weather", "input_schema": { "type": "object" } }],
            "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
            "thinking": { "type": "enabled", "budget_tokens": 1024 },
            "output_config": { "effort": "low", "format": { "type": "json_schema", "schema": {} } },
        }));
        let call = |id: &str, arguments: &str| json!({ "id": id, "type": "function", "function": { "name": "weather", "arguments": arguments } });
        let want = json!({
            "messages": [
                { "role": "system", "content": "be brief" },
                { "role": "user", "content": "rain?" },
                { "role": "assistant", "content": "I look.", "reasoning_content": "hm",
                  "tool_calls": [call("a", "{\"place\":\"Ulm\"}"), call("b", "{}")] },
                { "role": "tool", "tool_call_id": "a", "content": "none" },
                { "role": "tool", "tool_call_id": "b", "content": "" },
                { "role": "user", "content": "and\nnow?" },
            ],
            "tools": [{ "type": "function", "function": { "name": "weather", "parameters": { "type": "object" } } }],
            "tool_choice": "required", "parallel_tool_calls": false,
            "chat_template_kwargs": { "enable_thinking": true },
            "reasoning_effort": "low",
            "response_format": { "type": "json_schema", "json_schema": { "schema": {} } },
        });
        assert_eq!(chat.unwrap(), want);
    }

    #[test]
    fn unsupported_fields_that_change_the_answer_are_refused() {
        let user = json!([{ "role": "user", "content": "hi" }]);
        for (body, words) in [
            (json!({}), "`messages` is missing"),
            (json!({ "messages": [{ "role": "user" }] }), "`messages[0].content` is null"),
            (
                json!({ "messages": [{ "role": "user", "content": [{ "type": "image" }] }] }),
                "the model reads text only",
            ),
            (
                json!({ "messages": [user[0], { "role": "assistant", "content": "x" }] }),
                "the last message is the assistant's",
            ),
            (
                json!({ "messages": user, "tools": [{ "type": "web_search_20250305", "name": "web_search" }] }),
                "the server runs no tools itself",
            ),
            (json!({ "messages": user, "tool_choice": "auto" }), "`tool_choice` is \"auto\""),
        ] {
            let error = converted(&body).unwrap_err();
            assert!(error.message.contains(words), "{}", error.message);
        }
    }
}
