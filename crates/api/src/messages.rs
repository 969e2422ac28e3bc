//! Renders conversations of requests as model input.

use crate::app::App;
use crate::calls::{Choice, Function, Tools};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::parsers::Plan;
use crate::request_fields::MESSAGE;
use models::{ChatMessage, ChatTemplate, Conversation, Json, ModelError, call_arguments};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A conversation as model input.
pub(crate) struct Text {
    /// The text up to the start of the answer.
    pub(crate) text: String,
    /// Length in bytes of the prefix that every conversation with the same system message and tools shares.
    pub(crate) shared: usize,
    /// The functions in the prompt.
    pub(crate) tools: Option<Tools>,
    /// Parser plan for reasoning and calls in the answers, if there may be some.
    pub(crate) plan: Option<Plan>,
}

/// The text of a request's conversation.
pub(crate) fn text(fields: &mut Fields, app: &App) -> Result<Text, ApiError> {
    let template = match &app.texts.template {
        Ok(template) => template,
        Err(why) => {
            let message = format!(
                "this model has no usable chat template, which chat endpoints need ({why}): send text to /v1/completions, or serve the model with a chat_template.jinja in its folder"
            );
            return Err(ApiError::field("messages", message));
        }
    };
    let messages = match fields.take("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => messages,
        Some(value) => return Err(fields.wrong("messages", &value, "a list of messages")),
        None => return Err(fields.required("messages")),
    };
    let joins = template.contains(ONE_ANALYSIS);
    let messages: Result<Vec<ChatMessage>, ApiError> =
        messages.into_iter().enumerate().map(|(at, value)| message(at, value, joins)).collect();
    let (shown, tools) = tools(fields)?.unzip();
    let conversation = Conversation {
        tools: shown,
        kwargs: kwargs(fields)?,
        ..Conversation::to_answer(messages?)
    };
    // A template's error is the request's fault, for example an unsupported order of roles.
    let text = template.render(&conversation).map_err(|error| {
        let what = match error {
            ModelError::Template { what, .. } => what,
            error => error.to_string(),
        };
        ApiError::field("messages", what)
    })?;
    let shared = shared(template, conversation, &text, app);
    let functions = tools.as_ref().map(|tools| Arc::clone(&tools.functions));
    let parallel = tools.as_ref().is_none_or(|tools| tools.parallel);
    let plan = Plan::new(app.model_format(), functions, parallel, &text);
    Ok(Text { text, shared, tools, plan })
}

/// Length in bytes of the prefix that does not depend on the user's message; none if the template cannot render another
/// one. The other rendering is kept for later conversations with the same opening and tools.
fn shared(template: &ChatTemplate, mut conversation: Conversation, text: &str, app: &App) -> usize {
    let opens = |message: &ChatMessage| {
        let role = message.json().get("role");
        role.is_some_and(|role| matches!(role.as_str(), Some("system" | "developer")))
    };
    let opening = conversation.messages.iter().take_while(|message| opens(message)).count();
    conversation.messages.truncate(opening);
    conversation.messages.push(ChatMessage::new("user", ""));
    let other = app.opening(&conversation, || template.render(&conversation).ok());
    let Some(other) = other else { return 0 };
    let same = text.char_indices().zip(other.chars()).find(|((_, own), other)| own != other);
    same.map_or(text.len().min(other.len()), |((at, _), _)| at)
}

/// The functions in the prompt.
fn tools(fields: &mut Fields) -> Result<Option<(Vec<Json>, Tools)>, ApiError> {
    let tools = match fields.take("tools") {
        None => None,
        Some(Value::Array(tools)) => Some(tools),
        Some(value) => return Err(fields.wrong("tools", &value, "a list of functions")),
    };
    let choice = match fields.take("tool_choice") {
        None => Some(Choice::Auto),
        Some(choice) if choice == "auto" => Some(Choice::Auto),
        Some(choice) if choice == "required" => Some(Choice::Required),
        // Without calls, the model sees no functions.
        Some(choice) if choice == "none" => None,
        Some(choice) => match name_of(&choice) {
            Some(name) => Some(Choice::Named(name.to_owned())),
            None => {
                let wanted = r#"`auto`, `none`, `required` or {"type": "function", "function": {"name": ".."}}"#;
                return Err(fields.wrong("tool_choice", &choice, wanted));
            }
        },
    };
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let Some(tools) = tools.filter(|tools| !tools.is_empty()) else {
        return match choice {
            Some(Choice::Required | Choice::Named(_)) => Err(ApiError::field(
                "tool_choice",
                "`tool_choice` requires a call, and `tools` is empty",
            )),
            _ => Ok(None),
        };
    };
    let mut functions = Vec::with_capacity(tools.len());
    for (at, tool) in tools.iter().enumerate() {
        let Some(name) = name_of(tool) else {
            let wanted = r#"{"type": "function", "function": {"name": ".."}}"#;
            return Err(fields.wrong(&format!("tools[{at}]"), tool, wanted));
        };
        let arguments = tool["function"].get("parameters").cloned();
        let arguments = arguments.unwrap_or_else(|| json!({ "type": "object" }));
        functions.push(Function { name: name.to_owned(), arguments });
    }
    let tools = tools.into_iter().map(of_json).collect::<Result<Vec<_>, _>>()?;
    Ok(choice.map(|choice| (tools, Tools { functions: functions.into(), choice, parallel })))
}

/// The name in `{"type": "function", "function": {"name": ".."}}`.
fn name_of(function: &Value) -> Option<&str> {
    let kind = function.get("type")?.as_str()?;
    function.get("function")?.get("name")?.as_str().filter(|_| kind == "function")
}

/// OpenAI's levels of reasoning effort.
pub(crate) const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Variables for the template in addition to messages and tools. Templates ignore unknown ones.
fn kwargs(fields: &mut Fields) -> Result<Vec<(String, Json)>, ApiError> {
    let mut kwargs = Map::new();
    if let Some(effort) = fields.text("reasoning_effort")? {
        if !EFFORTS.contains(&effort.as_str()) {
            let wanted = format!("one of {}", EFFORTS.join(", "));
            return Err(fields.wrong("reasoning_effort", &Value::from(effort), &wanted));
        }
        // Templates of models with optional reasoning have a switch.
        if effort == "none" {
            kwargs.insert("enable_thinking".to_owned(), json!(false));
        }
        kwargs.insert("reasoning_effort".to_owned(), json!(effort));
    }
    match fields.take("documents") {
        None => {}
        Some(Value::Array(documents)) => {
            kwargs.insert("documents".to_owned(), Value::Array(documents));
        }
        Some(value) => return Err(fields.wrong("documents", &value, "a list of documents")),
    }
    match fields.take("chat_template_kwargs") {
        None => {}
        Some(Value::Object(values)) => {
            // Templates treat any text as true, even `false`.
            let is_switch = |name: &str| name.ends_with("thinking");
            let texts = |value: &Value| value.as_str().map(str::to_ascii_lowercase);
            for (name, value) in &values {
                if is_switch(name) && matches!(texts(value).as_deref(), Some("true" | "false")) {
                    let name = format!("chat_template_kwargs.{name}");
                    return Err(fields.wrong(&name, value, "true or false without quotes"));
                }
            }
            kwargs.extend(values);
        }
        Some(value) => return Err(fields.wrong("chat_template_kwargs", &value, "an object")),
    }
    kwargs.into_iter().map(|(name, value)| Ok((name, of_json(value)?))).collect()
}

/// The value as templates see it.
fn of_json(value: Value) -> Result<Json, ApiError> {
    serde_json::from_value(value).map_err(|error| ApiError::invalid(error.to_string()))
}

/// The error of gpt-oss's templates for an earlier message with calls, text and reasoning, which their models write:
/// the templates render text before a call as analysis, like reasoning.
const ONE_ANALYSIS: &str = "Cannot pass both content and thinking in an assistant message";

/// A message of a conversation. With `joins`, text and reasoning before a call are joined into one reasoning text.
fn message(at: usize, value: Value, joins: bool) -> Result<ChatMessage, ApiError> {
    let name = format!("messages[{at}]");
    let Value::Object(values) = value else {
        return Err(ApiError::field(&name, format!("`{name}` is {value}, expected an object")));
    };
    let mut fields = Fields::new(values, format!("{name}.")).screen(MESSAGE)?;
    let role = fields.text("role")?.ok_or_else(|| fields.required("role"))?;
    let mut all = vec![("role", Json::from(role))];
    let calls = calls(&mut fields)?;
    let refusal = fields.text("refusal")?;
    let [reasoning, older] = ["reasoning", "reasoning_content"].map(|name| fields.text(name));
    let reasoning = older?.or(reasoning?);
    let content = match fields.take("content") {
        Some(Value::String(text)) => Some(text),
        Some(Value::Array(parts)) => Some(parts_of(&parts, &fields)?),
        Some(value) => {
            return Err(fields.wrong("content", &value, "a string, or a list of text parts"));
        }
        // An assistant's message has calls, or a refusal.
        None if calls.is_some() => None,
        None if refusal.is_some() => refusal,
        // An answer that was cut off during reasoning.
        None if reasoning.is_some() => Some(String::new()),
        None => return Err(fields.required("content")),
    };
    let is_text = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    let (content, reasoning) = match (content, reasoning) {
        both if !joins || calls.is_none() || !is_text(&both.0) || !is_text(&both.1) => both,
        (content, reasoning) => {
            let texts = [reasoning, content].map(Option::unwrap_or_default);
            (None, Some(texts.join("\n\n")))
        }
    };
    all.extend(content.map(|content| ("content", Json::from(content))));
    all.extend(calls.map(|calls| ("tool_calls", calls)));
    all.extend(reasoning.map(|text| ("reasoning_content", Json::from(text))));
    for name in ["name", "tool_call_id"] {
        let text = fields.text(name)?;
        all.extend(text.map(|text| (name, Json::from(text))));
    }
    fields.end()?;
    let message = ChatMessage::from_json(Json::object(all));
    message.ok_or_else(|| ApiError::field(&name, "the message is not an object"))
}

/// Calls of an earlier answer. For OpenAI, arguments are the JSON text of an object; for templates, an object.
fn calls(fields: &mut Fields) -> Result<Option<Json>, ApiError> {
    let function = fields.object("function_call")?;
    let calls = match (fields.take("tool_calls"), function) {
        (None, None) => return Ok(None),
        // OpenAI's older format of a single call.
        (None, Some(function)) => {
            vec![json!({ "type": "function", "function": function.into_value() })]
        }
        (Some(Value::Array(calls)), _) if calls.is_empty() => return Ok(None),
        (Some(Value::Array(calls)), _) => calls,
        (Some(value), _) => return Err(fields.wrong("tool_calls", &value, "a list of calls")),
    };
    let call = |(at, call): (usize, Value)| {
        let Value::Object(call) = call else {
            return Err(fields.wrong(&format!("tool_calls[{at}]"), &call, "an object"));
        };
        let entries: Result<Vec<(String, Json)>, ApiError> = call
            .into_iter()
            .map(|(name, value)| match value {
                Value::Object(function) if name == "function" => {
                    Ok((name, called(function, at, fields)?))
                }
                value => Ok((name, of_json(value)?)),
            })
            .collect();
        Ok(Json::object(entries?))
    };
    let calls: Result<Vec<Json>, ApiError> = calls.into_iter().enumerate().map(call).collect();
    Ok(Some(Json::array(calls?)))
}

/// A called function. Its arguments exist even if the call had none.
fn called(function: Map<String, Value>, at: usize, fields: &Fields) -> Result<Json, ApiError> {
    let mut entries = Vec::with_capacity(function.len() + 1);
    for (name, value) in function {
        let value = match value {
            Value::Null if name == "arguments" => continue,
            Value::Object(_) => of_json(value)?,
            value if name == "arguments" => {
                let read = value.as_str().and_then(call_arguments);
                read.ok_or_else(|| {
                    let name = format!("tool_calls[{at}].function.arguments");
                    fields.wrong(&name, &value, "the text of a JSON object")
                })?
            }
            value => of_json(value)?,
        };
        entries.push((name, value));
    }
    if !entries.iter().any(|(name, _)| name == "arguments") {
        entries.push(("arguments".to_owned(), of_json(json!({}))?));
    }
    Ok(Json::object(entries))
}

/// The texts of parts, one per line, as in vLLM.
fn parts_of(parts: &[Value], fields: &Fields) -> Result<String, ApiError> {
    let text = |part: &Value| match part {
        Value::String(text) => Some(text.clone()),
        Value::Object(part) => {
            let text = match part.get("type")?.as_str()? {
                "text" | "input_text" | "output_text" => part.get("text"),
                "refusal" => part.get("refusal"),
                _ => None,
            };
            text?.as_str().map(str::to_owned)
        }
        _ => None,
    };
    let wanted = r#"{"type": "text", "text": ".."}: the model reads text"#;
    let texts =
        parts.iter().map(|part| text(part).ok_or_else(|| fields.wrong("content", part, wanted)));
    Ok(texts.collect::<Result<Vec<String>, ApiError>>()?.join("\n"))
}
