//! What a model is told that it may call, and how a conversation goes on behind a call: by Granite 4's own template.

use crate::client::Server;
use crate::model::model;
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
fn tools_are_shown_as_the_models_template_shows_them() {
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
    // The keys of a function stand in the order in which its author gave them.
    let function = r#"{"type": "function", "function": {"name": "weather", "description": "The weather of a place", "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}}}}"#;
    assert!(shown.contains(function) && shown.contains("<tools>"), "{shown}");
    let mut none = asked.clone();
    none["tool_choice"] = json!("none");
    let plain = text(&json!({ "messages": [user], "tools": [] }));
    assert_eq!((text(&none), plain.contains("<tools>")), (plain, false));
    // A call is text to OpenAI and an object to templates; what came of it follows.
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
    // An answer is made of the same text.
    let mut answered = history.clone();
    answered["max_tokens"] = json!(2);
    let answer = server.ask("/v1/chat/completions", &answered);
    assert_eq!(answer["usage"]["prompt_tokens"], said.len());
    // More that the template looks at.
    let kwargs =
        json!({ "messages": [user], "chat_template_kwargs": { "available_tools": [weather()] } });
    assert_eq!(text(&kwargs), shown);

    for (name, value, words) in [
        ("tool_choice", json!("required"), "cannot make a model call a function"),
        ("tool_choice", json!({ "type": "function" }), "cannot make a model call a function"),
        ("tools", json!("weather"), "wanted a list of functions"),
        ("tools", json!([{ "type": "function" }]), "`tools[0]` is"),
        ("chat_template_kwargs", json!([1]), "wanted an object"),
        (
            "chat_template_kwargs",
            json!({ "messages": [] }),
            "`messages` is no argument of a chat template's own",
        ),
        (
            "messages",
            json!([user, { "role": "assistant", "tool_calls": [{ "function": { "name": "x", "arguments": "nothing" } }] }]),
            "wanted the text of a JSON object",
        ),
        (
            "messages",
            json!([{ "role": "assistant", "content": null }]),
            "`messages[0].content` is missing",
        ),
        (
            "messages",
            json!([{ "role": "user", "content": "x", "audio": {} }]),
            "does not know the field `messages[0].audio`",
        ),
    ] {
        let mut body = asked.clone();
        body[name] = value;
        let refused = server.post("/v1/chat/completions", &body);
        assert_eq!(refused.status, 400, "{}", refused.body);
        assert!(refused.error().contains(words), "{}", refused.error());
    }
}
