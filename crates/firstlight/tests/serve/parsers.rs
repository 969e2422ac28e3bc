//! Answers of scripted models in every tool call and reasoning format, streamed and whole.

use crate::client::Server;
use crate::support::scripted;
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\
    {% for call in m.tool_calls or [] %}<call>{{ call.function.arguments | tojson }}</call>{% endfor %}\n{% endfor %}[assistant]";

/// A model that generates a text after the prompt of a template.
fn saying(text: &str, special: &[&str], template: &str) -> TempDir {
    let folder = tempdir().unwrap();
    scripted::say(&folder.path().join("m"), text, special);
    std::fs::write(folder.path().join("m/chat_template.jinja"), template).unwrap();
    folder
}

fn asking() -> Value {
    let properties = json!({
        "city": { "type": "string" }, "days": { "type": "integer" }, "dry": { "type": "boolean" },
    });
    let parameters = json!({
        "type": "object", "properties": properties, "required": ["city", "days", "dry"],
    });
    let function = json!({ "name": "f", "parameters": parameters });
    json!({
        "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 400, "temperature": 0,
        "tools": [{ "type": "function", "function": function }],
    })
}

/// The message and the finish reason. Asserts that the streamed chunks give the same.
fn answer(server: &Server, body: &Value) -> (Value, Value) {
    let whole = server.ask("/v1/chat/completions", body)["choices"][0].clone();
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let (mut content, mut reasoning) = (String::new(), String::new());
    let mut calls: Vec<Value> = Vec::new();
    let mut finish = Value::Null;
    for chunk in server.stream("/v1/chat/completions", &streamed) {
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        content += delta["content"].as_str().unwrap_or_default();
        reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        assert_eq!(delta["reasoning"], delta["reasoning_content"]);
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
            if index == calls.len() {
                calls.push(call["function"].clone());
                assert!(call["id"].is_string() && call["type"] == "function", "{call}");
                continue;
            }
            let arguments = calls[index]["arguments"].as_str().unwrap().to_owned();
            let more = call["function"]["arguments"].as_str().unwrap();
            calls[index]["arguments"] = json!(arguments + more);
        }
        finish = choice["finish_reason"].clone();
    }
    let message = &whole["message"];
    assert_eq!(message["content"].as_str().unwrap_or_default(), content);
    assert_eq!(message["reasoning_content"].as_str().unwrap_or_default(), reasoning);
    let functions: Vec<Value> = message["tool_calls"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|call| call["function"].clone())
        .collect();
    assert_eq!(functions, calls);
    assert_eq!(whole["finish_reason"], finish);
    (message.clone(), finish)
}

/// The rendered prompt of a conversation.
fn prompt(server: &Server, body: &Value) -> String {
    let asked = json!({ "messages": body["messages"], "tools": body["tools"] });
    let tokens = server.ask("/tokenize", &asked)["tokens"].clone();
    let text = server.ask("/detokenize", &json!({ "tokens": tokens }));
    text["prompt"].as_str().unwrap().to_owned()
}

/// A call in the format of each parser. With `tool_choice: required`, the grammar has to allow the model's own format.
#[test]
fn calls_in_every_format_are_parsed() {
    let xml = "<tool_call>\n<function=f>\n<parameter=city>\nUlm\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=dry>\ntrue\n</parameter>\n</function>\n</tool_call>";
    let arguments = r#"{"city": "Ulm", "days": 3, "dry": true}"#;
    let object = format!(r#"{{"name": "f", "arguments": {arguments}}}"#);
    for (parser, special, text) in [
        ("hermes", &["<end>"][..], format!("<tool_call>\n{object}\n</tool_call>")),
        ("granite", &["<end>", "<|tool_call|>"], format!("<|tool_call|>[{object}]")),
        ("qwen3_coder", &["<end>"], xml.to_owned()),
        ("mistral", &["<end>", "[TOOL_CALLS]"], format!("[TOOL_CALLS][{object}]")),
        (
            "mistral",
            &["<end>", "[TOOL_CALLS]", "[ARGS]"],
            format!("[TOOL_CALLS]f[ARGS]{arguments}"),
        ),
        ("llama3_json", &["<end>"], format!(r#"{{"name": "f", "parameters": {arguments}}}"#)),
        ("pythonic", &["<end>"], r#"[f(city="Ulm", days=3, dry=True)]"#.to_owned()),
        (
            "lfm2",
            &["<end>", "<|tool_call_start|>", "<|tool_call_end|>"],
            r#"<|tool_call_start|>[f(city="Ulm", days=3, dry=True)]<|tool_call_end|>"#.to_owned(),
        ),
        (
            "kimi_k2",
            &[
                "<end>",
                "<|tool_calls_section_begin|>",
                "<|tool_calls_section_end|>",
                "<|tool_call_begin|>",
                "<|tool_call_argument_begin|>",
                "<|tool_call_end|>",
            ],
            format!(
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{arguments}<|tool_call_end|><|tool_calls_section_end|>"
            ),
        ),
        (
            "openai",
            &[
                "<|call|>",
                "<|return|>",
                "<|channel|>",
                "<|message|>",
                "<|constrain|>",
                "<|start|>",
                "<|end|>",
            ],
            format!(
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{arguments}"
            ),
        ),
    ] {
        let folder = saying(&text, special, TEMPLATE);
        let server = Server::start(
            folder.path(),
            &["--tool-call-parser", parser, "--enable-auto-tool-choice"],
        );
        let mut body = asking();
        for choice in ["auto", "required"] {
            body["tool_choice"] = json!(choice);
            let (message, finish) = answer(&server, &body);
            let call = &message["tool_calls"][0]["function"];
            assert_eq!(
                (&call["name"], &call["arguments"]),
                (&json!("f"), &json!(arguments)),
                "{parser}: {message}"
            );
            assert_eq!(
                (finish, &message["content"]),
                (json!("tool_calls"), &Value::Null),
                "{parser}: {message}"
            );
        }
        // A truncated call has the finish reason `length`.
        body["tool_choice"] = json!("auto");
        body["max_tokens"] = json!(30);
        assert_eq!(answer(&server, &body).1, "length", "{parser}");
    }
}

/// The parsers are selected by the template, without options on the command line.
#[test]
fn template_selects_parsers_and_opens_reasoning() {
    let template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>\n<function={{ call.function.name }}>\n{% for name, value in call.function.arguments | items %}<parameter={{ name }}>\n{{ value }}\n</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}\n{% endfor %}[assistant]{% if not enable_thinking is defined or enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}";
    let call = "<tool_call>\n<function=f>\n<parameter=city>\nUlm\n</parameter>\n<parameter=days>\n12345678901234567890123\n</parameter>\n<parameter=dry>\nFalse\n</parameter>\n</function>\n</tool_call>";
    let folder = saying(&format!("Let me see.\n</think>\n\nYes.\n{call}"), &["<end>"], template);
    let server = Server::start(folder.path(), &[]);
    let arguments = r#"{"city": "Ulm", "days": 12345678901234567890123, "dry": false}"#;
    let mut body = asking();
    let (message, finish) = answer(&server, &body);
    assert_eq!(
        (&message["reasoning_content"], &message["reasoning"]),
        (&json!("Let me see.\n"), &json!("Let me see.\n"))
    );
    assert_eq!((&message["content"], finish), (&json!("\n\nYes."), json!("tool_calls")));
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], arguments);
    // Numbers keep all digits when the client returns the call.
    let result = json!({ "role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "rain" });
    let mut next = body.clone();
    next["messages"].as_array_mut().unwrap().extend([message, result]);
    let prompt = prompt(&server, &next);
    let said = "<parameter=days>\n12345678901234567890123\n</parameter>";
    assert!(prompt.contains(said), "{prompt}");
    // If the prompt closes the reasoning block, the answer has none.
    body["chat_template_kwargs"] = json!({ "enable_thinking": false });
    let (message, _) = answer(&server, &body);
    assert_eq!(message["content"], "Let me see.\n</think>\n\nYes.");
    assert!(message.get("reasoning_content").is_none());
    // A constrained answer is content, not reasoning.
    let mut formed = asking();
    formed.as_object_mut().unwrap().remove("tools");
    formed["response_format"] = json!({ "type": "json_object" });
    let (message, _) = answer(&server, &formed);
    assert!(message["content"].as_str().unwrap().starts_with('{'), "{message}");
}

/// A history with truncated, malformed or empty call arguments is accepted; arguments that are no JSON object are refused.
#[test]
fn accepts_history_with_broken_calls() {
    let folder = saying("Yes.", &["<end>"], TEMPLATE);
    let server = Server::start(folder.path(), &[]);
    let history = |arguments: &Value| {
        let function = json!({ "name": "f", "arguments": arguments });
        let call = json!({ "id": "1", "type": "function", "function": function });
        let mut body = asking();
        let called = json!({ "role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [call] });
        let result = json!({ "role": "tool", "tool_call_id": "1", "content": "invalid JSON" });
        body["messages"].as_array_mut().unwrap().extend([called, result]);
        body
    };
    for (arguments, shown) in [
        (json!("{\"a\": "), "{}"),
        (json!("{\"a\": \"Ul"), "{\"a\": \"Ul\"}"),
        (json!("{\"a\": 1} trailing"), "{\"a\": 1}"),
        (json!("not json"), "{}"),
        (json!(""), "{}"),
        (json!(null), "{}"),
        (
            json!("{\"a\": 18446744073709551617, \"b\": 0.1000000000000000000001}"),
            "{\"a\": 18446744073709551617, \"b\": 0.1000000000000000000001}",
        ),
    ] {
        let body = history(&arguments);
        assert_eq!(answer(&server, &body).0["content"], "Yes.", "{arguments}");
        let prompt = prompt(&server, &body);
        assert!(prompt.contains(&format!("<call>{shown}</call>")), "{prompt}");
    }
    for arguments in
        [json!("5"), json!("\"text\""), json!("[1]"), json!("null"), json!(5), json!([1])]
    {
        let refused = server.post("/v1/chat/completions", &history(&arguments));
        assert_eq!(refused.status, 400, "{arguments}");
        assert!(refused.error().contains("expected the text of a JSON object"), "{}", refused.body);
    }
    // A previous answer with reasoning and without content.
    let mut body = asking();
    let thought = json!({ "role": "assistant", "content": null, "reasoning_content": "hm" });
    body["messages"]
        .as_array_mut()
        .unwrap()
        .extend([thought, json!({ "role": "user", "content": "and?" })]);
    assert_eq!(answer(&server, &body).0["content"], "Yes.");
}

/// gpt-oss's models write messages with calls, content and reasoning, which their templates refuse.
#[test]
fn content_and_reasoning_merge_into_one_analysis() {
    let template = "{% for m in messages %}[{{ m.role }}]{% if m.tool_calls %}\
        {% if m.content and m.thinking %}{{ raise_exception('Cannot pass both content and thinking in an assistant message with tool calls!') }}{% endif %}\
        {{ m.content or m.thinking }}{% else %}{{ m.content }}{% endif %}{% endfor %}[assistant]";
    let folder = saying("Yes.", &["<end>"], template);
    let server = Server::start(folder.path(), &[]);
    let function = json!({ "name": "f", "arguments": "{}" });
    let calls = json!([{ "id": "1", "type": "function", "function": function }]);
    for (content, reasoning, shown) in [
        (json!("I ask."), json!("Hm."), "[assistant]Hm.\n\nI ask.[tool]"),
        (json!("I ask."), json!(null), "[assistant]I ask.[tool]"),
        (json!(null), json!("Hm."), "[assistant]Hm.[tool]"),
        (json!(""), json!("Hm."), "[assistant]Hm.[tool]"),
    ] {
        let called = json!({ "role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": calls });
        let result = json!({ "role": "tool", "tool_call_id": "1", "content": "rain" });
        let mut body = asking();
        body["messages"].as_array_mut().unwrap().extend([called, result]);
        assert_eq!(answer(&server, &body).0["content"], "Yes.");
        let prompt = prompt(&server, &body);
        assert!(prompt.contains(shown), "{prompt}");
    }
}

/// With `parallel_tool_calls` off, only the first of several calls is returned.
#[test]
fn parallel_calls_can_be_turned_off() {
    let call = |city: &str| {
        format!(
            "<tool_call>\n{{\"name\": \"f\", \"arguments\": {{\"city\": \"{city}\"}}}}\n</tool_call>\n"
        )
    };
    let folder = saying(&(call("Ulm") + &call("Bonn")), &["<end>"], TEMPLATE);
    let server = Server::start(folder.path(), &["--tool-call-parser", "hermes"]);
    let mut body = asking();
    assert_eq!(answer(&server, &body).0["tool_calls"].as_array().unwrap().len(), 2);
    body["parallel_tool_calls"] = json!(false);
    let (message, finish) = answer(&server, &body);
    let calls = message["tool_calls"].as_array().unwrap();
    assert_eq!((calls.len(), finish), (1, json!("tool_calls")));
    assert_eq!(calls[0]["function"]["arguments"], "{\"city\": \"Ulm\"}");
}
