//! Tool definitions in the prompt and conversations with tool calls, with Granite 4's template.

use crate::client::Server;
use crate::model::{ending, model};
use serde_json::{Value, json};

const GRANITE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tests/templates/granite-4.0.jinja");

fn weather() -> Value {
    json!({ "type": "function", "function": {
        "name": "weather", "description": "The weather of a place",
        "parameters": { "type": "object", "properties": { "place": { "type": "string" }, "days": { "type": "integer" } } },
    }})
}

#[test]
fn tools_are_rendered_by_the_chat_template() {
    let folder = model("granite-moe-mini");
    std::fs::copy(GRANITE, folder.path().join("m/chat_template.jinja")).unwrap();
    let server = Server::start(folder.path(), &[]);
    let text = |body: &Value| {
        let tokens = server.ask("/tokenize", body)["tokens"].clone();
        let text = server.ask("/detokenize", &json!({ "tokens": tokens }));
        text["prompt"].as_str().unwrap().to_owned()
    };
    let user = json!({ "role": "user", "content": "Is it raining in Ulm?" });
    let asked = json!({ "messages": [user], "tools": [weather()] });
    let shown = text(&asked);
    // The keys of a function keep the client's order.
    let function = r#"{"type": "function", "function": {"name": "weather", "description": "The weather of a place", "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}}}}"#;
    assert!(shown.contains(function) && shown.contains("<tools>"), "{shown}");
    let mut none = asked.clone();
    none["tool_choice"] = json!("none");
    let plain = text(&json!({ "messages": [user], "tools": [] }));
    assert_eq!((text(&none), plain.contains("<tools>")), (plain, false));
    // The arguments of a call are text in the API and an object in the template; the tool's result follows.
    let call = json!({ "id": "1", "type": "function", "function": { "name": "weather", "arguments": "{\"place\": \"Ulm\", \"days\": 1}" } });
    let called = json!({ "role": "assistant", "content": null, "tool_calls": [call] });
    let result = json!({ "role": "tool", "tool_call_id": "1", "content": "no rain" });
    let history =
        json!({ "messages": [user, called, result], "tools": [weather()], "tool_choice": "auto" });
    let said = text(&history);
    assert!(
        said.contains(r#"{"name": "weather", "arguments": {"place": "Ulm", "days": 1}}"#),
        "{said}"
    );
    assert!(
        said.contains("no rain") && said.starts_with(shown.split("Ulm").next().unwrap()),
        "{said}"
    );
    // The prompt of an answer is the rendered text.
    let mut answered = history.clone();
    answered["max_tokens"] = json!(2);
    let answer = server.ask("/v1/chat/completions", &answered);
    assert_eq!(answer["usage"]["prompt_tokens"], said.len());
    // Template arguments.
    let kwargs =
        json!({ "messages": [user], "chat_template_kwargs": { "available_tools": [weather()] } });
    assert_eq!(text(&kwargs), shown);

    for (name, value, words) in [
        ("tool_choice", json!("any"), "expected `auto`, `none`, `required` or"),
        ("tool_choice", json!({ "type": "function" }), "expected `auto`, `none`, `required` or"),
        (
            "tool_choice",
            json!({ "type": "function", "function": { "name": "rain" } }),
            "names none of the functions",
        ),
        ("tools", json!("weather"), "expected a list of functions"),
        ("tools", json!([{ "type": "function" }]), "`tools[0]` is"),
        ("chat_template_kwargs", json!([1]), "expected an object"),
        (
            "chat_template_kwargs",
            json!({ "messages": [] }),
            "`messages` is no argument of a chat template's own",
        ),
        (
            "chat_template_kwargs",
            json!({ "enable_thinking": "False" }),
            "`chat_template_kwargs.enable_thinking` is \"False\", expected true or false without quotes",
        ),
        (
            "messages",
            json!([user, { "role": "assistant", "tool_calls": [{ "function": { "name": "x", "arguments": "5" } }] }]),
            "expected the text of a JSON object",
        ),
        (
            "messages",
            json!([{ "role": "assistant", "content": null }]),
            "`messages[0].content` is missing",
        ),
        (
            "messages",
            json!([{ "role": "user", "content": "x", "audio": {} }]),
            "`messages[0].audio` is not supported: the model reads text only",
        ),
    ] {
        let mut body = asked.clone();
        body[name] = value;
        let refused = server.post("/v1/chat/completions", &body);
        assert_eq!(refused.status, 400, "{}", refused.body);
        assert!(refused.error().contains(words), "{}", refused.error());
    }
}

/// A model with random weights follows the grammar of a required call.
#[test]
fn required_call_is_parsed() {
    let folder = ending("granite-moe-mini");
    std::fs::copy(GRANITE, folder.path().join("m/chat_template.jinja")).unwrap();
    let server = Server::start(folder.path(), &[]);
    let function = |name: &str, key: &str| {
        let properties = json!({ key: { "enum": ["Ulm", "Bonn"] }, "days": { "type": "integer", "minimum": 1, "maximum": 9 } });
        let parameters = json!({ "type": "object", "properties": properties, "required": [key, "days"], "additionalProperties": false });
        json!({ "type": "function", "function": { "name": name, "parameters": parameters } })
    };
    let mut body = json!({
        "messages": [{ "role": "user", "content": "Is it raining?" }], "n": 4, "seed": 3,
        "tools": [function("weather", "place"), function("rain", "town")],
        "tool_choice": "required", "max_tokens": 400, "temperature": 1.0,
    });
    let is_call = |call: &Value| {
        let arguments: Value =
            serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        let key = match call["function"]["name"].as_str().unwrap() {
            "weather" => "place",
            "rain" => "town",
            other => panic!("{other}"),
        };
        let days = arguments["days"].as_u64().unwrap();
        assert!((1..=9).contains(&days) && arguments.as_object().unwrap().len() == 2, "{call}");
        assert!(["Ulm", "Bonn"].iter().any(|place| arguments[key] == *place), "{call}");
        assert_eq!(call["type"], "function");
        call["id"].as_str().unwrap().to_owned()
    };
    let answer = server.ask("/v1/chat/completions", &body);
    let mut ids = std::collections::BTreeSet::new();
    for choice in answer["choices"].as_array().unwrap() {
        assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
        assert_eq!(choice["message"]["content"], Value::Null);
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1, "{choice}");
        ids.insert(is_call(&calls[0]));
    }
    assert_eq!(ids.len(), 4);
    // A named function, streamed.
    body["tool_choice"] = json!({ "type": "function", "function": { "name": "rain" } });
    (body["n"], body["stream"]) = (json!(1), json!(true));
    let chunks = server.stream("/v1/chat/completions", &body);
    let deltas = || chunks.iter().filter_map(|chunk| chunk["choices"].get(0));
    let calls: Vec<&Value> =
        deltas().filter_map(|choice| choice["delta"]["tool_calls"].as_array()).flatten().collect();
    // The first chunk has the name, the next ones have parts of the arguments.
    assert!(calls.iter().all(|call| call["index"] == 0), "{chunks:?}");
    let pieces = calls.iter().map(|call| call["function"]["arguments"].as_str().unwrap());
    let arguments: String = pieces.collect();
    assert!(
        calls[1..]
            .iter()
            .all(|call| call["function"].get("name").is_none() && call.get("id").is_none())
    );
    let mut call = calls[0].clone();
    call["function"]["arguments"] = json!(arguments);
    is_call(&call);
    assert_eq!(call["function"]["name"], "rain");
    assert!(deltas().all(|choice| choice["delta"]["content"].as_str().is_none_or(str::is_empty)));
    assert_eq!(deltas().next_back().unwrap()["finish_reason"], "tool_calls");
    // The call is returned in the conversation.
    let said = &answer["choices"][0]["message"];
    let result =
        json!({ "role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "no" });
    let mut messages = body["messages"].as_array().unwrap().clone();
    messages.extend([said.clone(), result]);
    // One of the 512 tokens ends an answer, and the sampled tokens depend on the random call ids.
    let next = json!({ "messages": messages, "tools": body["tools"], "max_tokens": 2, "ignore_eos": true });
    assert_eq!(server.ask("/v1/chat/completions", &next)["choices"][0]["finish_reason"], "length");
    // `tool_choice` and `response_format` exclude each other.
    body["response_format"] = json!({ "type": "json_object" });
    let refused = server.post("/v1/chat/completions", &body);
    assert!(refused.error().contains("its own grammar"), "{}", refused.body);
}
