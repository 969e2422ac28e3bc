//! Converts requests of OpenAI's Responses API into fields of a chat completion.

use super::{Conversation, string, text_of, wrong};
use crate::error::ApiError;
use crate::fields::Fields;
use serde_json::{Map, Value, json};

/// Tools of a request whose name in the API differs from the name that the model is given.
#[derive(Debug, Default)]
pub(crate) struct ToolNames {
    /// Custom tools, which take a text instead of JSON arguments.
    pub(crate) custom: Vec<String>,
    /// The name for the model, the namespace, and the name within the namespace.
    namespaced: Vec<(String, String, String)>,
}

impl ToolNames {
    /// The name of a tool and its namespace, from the name that the model wrote.
    pub(crate) fn find(&self, flat: &str) -> (String, Option<String>) {
        let found = self.namespaced.iter().find(|(own, _, _)| own == flat);
        match found {
            Some((_, space, name)) => (name.clone(), Some(space.clone())),
            None => (flat.to_owned(), None),
        }
    }
}

/// The name that the model is given for a tool in a namespace.
fn flat_name(space: &str, name: &str) -> String {
    format!("{space}__{name}")
}

/// Converts input items, tools and the format of the answer into fields of a chat completion.
pub(crate) fn to_chat(
    fields: &mut Fields,
    instructions: Option<&str>,
    items: &[Value],
) -> Result<(Fields, ToolNames), ApiError> {
    let mut chat = Map::new();
    let mut conversation = Conversation::default();
    if let Some(instructions) = instructions {
        conversation.system(instructions.to_owned());
    }
    for (at, item) in items.iter().enumerate() {
        add(&mut conversation, &format!("input[{at}]"), item)?;
    }
    chat.insert("messages".to_owned(), Value::Array(conversation.messages));
    let mut names = ToolNames::default();
    if let Some(tools) = fields.take("tools") {
        let Some(list) = tools.as_array() else {
            return Err(fields.wrong("tools", &tools, "a list of tools"));
        };
        let mut functions = Vec::new();
        for (at, tool) in list.iter().enumerate() {
            add_tool(&format!("tools[{at}]"), tool, None, (&mut functions, &mut names))?;
        }
        chat.insert("tools".to_owned(), Value::Array(functions));
    }
    if let Some(choice) = fields.take("tool_choice") {
        chat.insert("tool_choice".to_owned(), choice_of(&choice)?);
    }
    if let Some(parallel) = fields.take("parallel_tool_calls") {
        chat.insert("parallel_tool_calls".to_owned(), parallel);
    }
    if let Some(reasoning) = fields.take("reasoning")
        && let Some(effort) = reasoning.get("effort").filter(|effort| !effort.is_null())
    {
        chat.insert("reasoning_effort".to_owned(), effort.clone());
    }
    if let Some(text) = fields.take("text")
        && let Some(format) = text.get("format").filter(|format| !format.is_null())
    {
        chat.insert("response_format".to_owned(), format_of(format)?);
    }
    if let Some(structured) = fields.take("structured_outputs") {
        chat.insert("structured_outputs".to_owned(), structured);
    }
    Ok((Fields::new(chat, String::new()), names))
}

/// The items of `input`.
pub(crate) fn items(input: Value) -> Result<Vec<Value>, ApiError> {
    match input {
        Value::String(text) => {
            Ok(vec![json!({ "type": "message", "role": "user", "content": text })])
        }
        Value::Array(items) => Ok(items),
        value => {
            Err(wrong("input", &value, "a string or a list of items").with_code("invalid_type"))
        }
    }
}

fn add(conversation: &mut Conversation, name: &str, item: &Value) -> Result<(), ApiError> {
    let kind = match item["type"].as_str() {
        None if item["role"].is_string() => "message",
        None => string(name, item, "type")?,
        Some(kind) => kind,
    };
    match kind {
        "message" => {
            let text = text_of(&format!("{name}.content"), &item["content"])?;
            match string(name, item, "role")? {
                // Templates have one system message, at the start.
                "system" | "developer" => conversation.system(text),
                role @ ("user" | "assistant") => conversation.text(role, text),
                role => {
                    let wanted = "`user`, `assistant`, `system` or `developer`";
                    return Err(wrong(&format!("{name}.role"), &json!(role), wanted));
                }
            }
        }
        "function_call" => {
            let own = string(name, item, "name")?;
            let tool = match item["namespace"].as_str() {
                Some(space) => flat_name(space, own),
                None => own.to_owned(),
            };
            let (id, arguments) =
                (string(name, item, "call_id")?, string(name, item, "arguments")?);
            conversation.call(id, &tool, arguments);
        }
        "custom_tool_call" => {
            let arguments = json!({ "input": string(name, item, "input")? }).to_string();
            let (id, tool) = (string(name, item, "call_id")?, string(name, item, "name")?);
            conversation.call(id, tool, &arguments);
        }
        "function_call_output" | "custom_tool_call_output" => {
            let text = text_of(&format!("{name}.output"), &item["output"])?;
            conversation.result(string(name, item, "call_id")?, &text);
        }
        "reasoning" => {
            let own = text_of(&format!("{name}.content"), &item["content"])?;
            let text = match own.is_empty() {
                true => text_of(&format!("{name}.summary"), &item["summary"])?,
                false => own,
            };
            conversation.reasoning(&text);
        }
        _ => {
            let wanted = "an item of type message, function_call, function_call_output, custom_tool_call, custom_tool_call_output or reasoning";
            return Err(wrong(name, item, wanted).with_code("unsupported_value"));
        }
    }
    Ok(())
}

fn add_tool(
    name: &str,
    tool: &Value,
    space: Option<&str>,
    (functions, names): (&mut Vec<Value>, &mut ToolNames),
) -> Result<(), ApiError> {
    let mut function = match string(name, tool, "type")? {
        "function" => {
            let own = string(name, tool, "name")?;
            let flat = space.map_or_else(|| own.to_owned(), |space| flat_name(space, own));
            if let Some(space) = space {
                names.namespaced.push((flat.clone(), space.to_owned(), own.to_owned()));
            }
            let mut function = json!({ "name": flat });
            if !tool["parameters"].is_null() {
                function["parameters"] = tool["parameters"].clone();
            }
            function
        }
        // The model is given a function with one argument, `input`.
        "custom" if space.is_none() => {
            let own = string(name, tool, "name")?;
            names.custom.push(own.to_owned());
            let input = json!({ "type": "string" });
            json!({ "name": own, "parameters": {
                "type": "object", "properties": { "input": input }, "required": ["input"],
                "additionalProperties": false,
            }})
        }
        "namespace" if space.is_none() => {
            let space = string(name, tool, "name")?;
            let tools = tool["tools"].as_array().map_or(&[][..], Vec::as_slice);
            for (at, tool) in tools.iter().enumerate() {
                let name = format!("{name}.tools[{at}]");
                add_tool(&name, tool, Some(space), (&mut *functions, &mut *names))?;
            }
            return Ok(());
        }
        // Codex sends it by default. Without web access it cannot find anything, so the model is not given the tool.
        "web_search" if tool["external_web_access"] == false => return Ok(()),
        _ => {
            let wanted =
                "a tool of type function, custom or namespace: the server runs no tools itself";
            return Err(wrong(name, tool, wanted).with_code("unsupported_value"));
        }
    };
    let mut description = tool["description"].as_str().unwrap_or_default().to_owned();
    if let Some(definition) = tool["format"]["definition"].as_str() {
        let syntax = tool["format"]["syntax"].as_str().unwrap_or("lark");
        description += &format!("\n\nThe input follows this grammar ({syntax}):\n{definition}");
    }
    if !description.is_empty() {
        function["description"] = json!(description);
    }
    functions.push(json!({ "type": "function", "function": function }));
    Ok(())
}

fn choice_of(choice: &Value) -> Result<Value, ApiError> {
    if choice.is_string() {
        return Ok(choice.clone());
    }
    match choice["type"].as_str() {
        Some("function" | "custom") => {
            let name = string("tool_choice", choice, "name")?;
            Ok(json!({ "type": "function", "function": { "name": name } }))
        }
        _ => {
            let wanted = r#"`auto`, `none`, `required` or {"type": "function", "name": ".."}"#;
            Err(wrong("tool_choice", choice, wanted).with_code("unsupported_value"))
        }
    }
}

fn format_of(format: &Value) -> Result<Value, ApiError> {
    match string("text.format", format, "type")? {
        "json_schema" => {
            let schema = &format["schema"];
            if schema.is_null() {
                return Err(ApiError::field(
                    "text.format.schema",
                    "`text.format.schema` is missing",
                )
                .with_code("missing_required_parameter"));
            }
            Ok(json!({ "type": "json_schema", "json_schema": { "schema": schema } }))
        }
        kind @ ("text" | "json_object") => Ok(json!({ "type": kind })),
        kind => {
            let wanted = "`text`, `json_object` or `json_schema`";
            Err(wrong("text.format.type", &json!(kind), wanted))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(body: &Value) -> Result<(Value, ToolNames), ApiError> {
        let Value::Object(values) = body.clone() else { panic!("{body}") };
        let mut fields = Fields::new(values, String::new());
        let input = items(fields.take("input").unwrap())?;
        let (chat, names) = to_chat(&mut fields, Some("be brief"), &input)?;
        Ok((chat.into_value(), names))
    }

    #[test]
    fn items_become_messages_calls_and_results() {
        let (chat, names) = converted(&json!({
            "input": [
                { "type": "message", "role": "developer", "content": [{ "type": "input_text", "text": "use tools" }] },
                { "role": "user", "content": "rain?" },
                { "type": "reasoning", "id": "r", "summary": [], "content": [{ "type": "reasoning_text", "text": "hm" }] },
                { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "I look.", "annotations": [] }] },
                { "type": "function_call", "call_id": "a", "name": "weather", "arguments": "{\"place\": 1}" },
                { "type": "custom_tool_call", "call_id": "b", "name": "patch", "input": "+x" },
                { "type": "function_call", "call_id": "c", "name": "stop", "namespace": "agents", "arguments": "{}" },
                { "type": "function_call_output", "call_id": "a", "output": "none" },
                { "type": "custom_tool_call_output", "call_id": "b", "output": [{ "type": "input_text", "text": "done" }] },
            ],
            "tools": [
                { "type": "function", "name": "weather", "description": "tells", "parameters": { "type": "object" }, "strict": true },
                { "type": "namespace", "name": "agents", "tools": [{ "type": "function", "name": "stop" }] },
                { "type": "web_search", "external_web_access": false },
                { "type": "custom", "name": "patch", "format": { "type": "grammar", "syntax": "lark", "definition": "start: X" } },
            ],
            "tool_choice": { "type": "function", "name": "weather" },
            "reasoning": { "effort": "low", "summary": "auto" },
            "text": { "verbosity": "low", "format": { "type": "json_schema", "name": "a", "schema": {} } },
        }))
        .unwrap();
        assert_eq!(names.custom, ["patch"]);
        assert_eq!(names.find("agents__stop"), ("stop".to_owned(), Some("agents".to_owned())));
        assert_eq!(names.find("weather"), ("weather".to_owned(), None));
        assert_eq!(
            chat["messages"][0],
            json!({ "role": "system", "content": "be brief\n\nuse tools" })
        );
        let call = |id: &str, name: &str, arguments: &str| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
        assert_eq!(
            chat["messages"][2],
            json!({ "role": "assistant", "content": "I look.", "reasoning_content": "hm",
                "tool_calls": [call("a", "weather", "{\"place\": 1}"), call("b", "patch", "{\"input\":\"+x\"}"), call("c", "agents__stop", "{}")] })
        );
        assert_eq!(
            chat["messages"][4],
            json!({ "role": "tool", "tool_call_id": "b", "content": "done" })
        );
        assert_eq!(chat["tools"][0]["function"]["parameters"], json!({ "type": "object" }));
        assert_eq!(chat["tools"][1]["function"]["name"], "agents__stop");
        assert!(chat["tools"][2]["function"]["description"].as_str().unwrap().contains("start: X"));
        assert_eq!(chat["tool_choice"]["function"]["name"], "weather");
        assert_eq!(chat["reasoning_effort"], "low");
        assert_eq!(chat["response_format"]["json_schema"]["schema"], json!({}));
    }

    #[test]
    fn unsupported_fields_that_change_the_answer_are_refused() {
        for (body, words) in [
            (json!({ "input": 1 }), "`input` is 1"),
            (
                json!({ "input": [{ "role": "user", "content": [{ "type": "input_image" }] }] }),
                "reads text only",
            ),
            (
                json!({ "input": [{ "type": "web_search_call", "id": "x" }] }),
                "expected an item of type",
            ),
            (
                json!({ "input": [{ "type": "function_call", "name": "f" }] }),
                "`input[0].call_id` is missing",
            ),
            (
                json!({ "input": "x", "tools": [{ "type": "file_search" }] }),
                "the server runs no tools itself",
            ),
            (
                json!({ "input": "x", "tools": [{ "type": "web_search" }] }),
                "the server runs no tools itself",
            ),
            (json!({ "input": "x", "tool_choice": { "type": "web_search" } }), "`tool_choice`"),
            (
                json!({ "input": "x", "text": { "format": { "type": "xml" } } }),
                "`text.format.type`",
            ),
        ] {
            let error = converted(&body).unwrap_err();
            assert!(error.message.contains(words), "{}", error.message);
        }
    }
}
