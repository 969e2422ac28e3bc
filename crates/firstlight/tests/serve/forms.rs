//! Structured outputs. The models have random weights, so unconstrained answers are noise.
//!
//! The test draws a few dozen answers. All 1,000 of each schema take minutes:
//!
//! ```text
//! FIRSTLIGHT_ANSWERS=1000 cargo test -p firstlight --test serve forms::
//! ```

use crate::client::Server;
use crate::model::{ending, model};
use serde_json::{Value, json};

/// A schema, and an independent check of the values that it allows.
type Case = (Value, fn(&Value) -> bool);

fn person(value: &Value) -> bool {
    let Some(map) = value.as_object() else { return false };
    let short = |text: &Value| text.as_str().is_some_and(|text| text.chars().count() <= 6);
    map.keys().eq(["name", "age", "kind", "tags"])
        && short(&map["name"])
        && map["age"].as_u64().is_some_and(|age| age <= 150)
        && ["cat", "dog"].iter().any(|kind| map["kind"] == *kind)
        && map["tags"]
            .as_array()
            .is_some_and(|tags| tags.len() <= 3 && tags.iter().all(Value::is_boolean))
}

fn cases() -> Vec<Case> {
    let properties = json!({
        "name": { "type": "string", "maxLength": 6 },
        "age": { "type": "integer", "minimum": 0, "maximum": 150 },
        "kind": { "enum": ["cat", "dog"] },
        "tags": { "type": "array", "items": { "type": "boolean" }, "maxItems": 3 },
    });
    let person_schema = json!({
        "type": "object", "properties": properties, "additionalProperties": false,
        "required": ["name", "age", "kind", "tags"],
    });
    let tree = json!({
        "$defs": { "node": { "anyOf": [{ "type": "null" }, { "$ref": "#/$defs/leaf" }] },
                   "leaf": { "type": "array", "items": { "type": "integer", "minimum": -9, "maximum": 9 }, "minItems": 2, "maxItems": 2 } },
        "$ref": "#/$defs/node",
    });
    let is_tree = |value: &Value| {
        // JSON also allows -0, which is no i64.
        let small = |number: &Value| {
            number.as_f64().is_some_and(|number| number.fract() == 0.0 && number.abs() <= 9.0)
        };
        value.is_null()
            || value.as_array().is_some_and(|both| both.len() == 2 && both.iter().all(small))
    };
    vec![(person_schema, person), (tree, is_tree)]
}

fn text(choice: &Value) -> &str {
    choice["message"]["content"].as_str().unwrap()
}

#[test]
fn answers_conform_to_json_schema() {
    let answers: usize =
        std::env::var("FIRSTLIGHT_ANSWERS").map_or(32, |count| count.parse().unwrap());
    let folder = ending("kimi-linear-mini");
    let server = Server::start(folder.path(), &[]);
    let ask = |schema: Option<&Value>, seed: usize| {
        let mut body = json!({
            "messages": [{ "role": "user", "content": "who?" }], "n": 8, "seed": 8 * seed,
            "max_tokens": 900, "temperature": 1.0,
        });
        if let Some(schema) = schema {
            let named = json!({ "name": "answer", "strict": true, "schema": schema });
            body["response_format"] = json!({ "type": "json_schema", "json_schema": named });
        }
        server.ask("/v1/chat/completions", &body)["choices"].as_array().unwrap().clone()
    };
    for (schema, allows) in cases() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..answers.div_ceil(8) {
            for choice in ask(Some(&schema), seed) {
                assert_eq!(choice["finish_reason"], "stop", "{choice}");
                let parsed = serde_json::from_str(text(&choice));
                let value: Value = parsed.unwrap_or_else(|_| panic!("no JSON: {choice}"));
                assert!(allows(&value), "{schema} does not allow {choice}");
                seen.insert(value.to_string());
            }
        }
        assert!(seen.len() > answers / 8, "the answers differ: {seen:?}");
        let free = ask(None, 0);
        assert!(free.iter().all(|choice| serde_json::from_str::<Value>(text(choice)).is_err()));
    }
    server.wait_until_free();
}

#[test]
fn constraints_hold_in_mixed_batches() {
    let folder = ending("granite-moe-mini");
    let server = Server::start(folder.path(), &[]);
    let ask = |name: &str, form: Value, stream: bool| {
        let mut body = json!({ "prompt": "x", "max_tokens": 300, "temperature": 1.0, "seed": 5, "n": 4, "logprobs": 0 });
        body[name] = form;
        if stream {
            body["stream"] = json!(true);
            let mut texts = vec![String::new(); 4];
            for event in server.stream("/v1/completions", &body) {
                let choice = &event["choices"][0];
                texts[choice["index"].as_u64().unwrap() as usize] +=
                    choice["text"].as_str().unwrap();
            }
            return texts;
        }
        let answer = server.ask("/v1/completions", &body);
        let choices = answer["choices"].as_array().unwrap();
        choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
    };
    for stream in [false, true] {
        for said in ask("structured_outputs", json!({ "regex": "[a-c]{3}-[0-9]+é?!" }), stream) {
            let (letters, rest) = said.split_once('-').unwrap();
            assert!(
                letters.len() == 3 && letters.chars().all(|c| ('a'..='c').contains(&c)),
                "{said}"
            );
            let digits = rest.strip_suffix('!').unwrap().trim_end_matches('é');
            assert!(!digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit()), "{said}");
        }
        let words = ["one \"quoted\" word", "zwei", "три"];
        for said in ask("structured_outputs", json!({ "choice": words }), stream) {
            assert!(words.contains(&said.as_str()), "{said}");
        }
        // On-device greedy sampling is off for constrained requests.
        let greedy = json!({ "prompt": "x", "max_tokens": 40, "temperature": 0, "structured_outputs": { "choice": ["yes", "no"] } });
        let said = server.ask("/v1/completions", &greedy)["choices"][0]["text"].clone();
        assert!(said == "yes" || said == "no", "{said}");
    }
    let body = json!({ "prompt": "x", "max_tokens": 5, "temperature": 1.0, "seed": 5, "response_format": { "type": "json_object" } });
    let cut = &server.ask("/v1/completions", &body)["choices"][0];
    assert!(cut["text"].as_str().unwrap().starts_with('{'), "{cut}");
    // The schema field of llama.cpp's clients.
    let schema = json!({ "enum": [{ "a": 1 }] });
    for kind in ["json_schema", "json_object"] {
        let format = json!({ "type": kind, "schema": schema });
        for said in ask("response_format", format, false) {
            assert_eq!(serde_json::from_str::<Value>(&said).unwrap(), json!({ "a": 1 }));
        }
    }
    server.wait_until_free();
}

#[test]
fn rejects_invalid_constraints() {
    let folder = ending("granite-moe-mini");
    let server = Server::start(folder.path(), &[]);
    for (name, form, words) in [
        (
            "response_format",
            json!({ "type": "yaml" }),
            "expected `text`, `json_object` or `json_schema`",
        ),
        (
            "response_format",
            json!({ "type": "json_schema" }),
            "`response_format.json_schema` is missing",
        ),
        (
            "response_format",
            json!({ "type": "json_schema", "json_schema": { "name": "x" } }),
            "json_schema.schema` is missing",
        ),
        (
            "response_format",
            json!({ "type": "json_schema", "json_schema": { "schema": { "type": "nothing" } } }),
            "cannot be enforced",
        ),
        (
            "response_format",
            json!({ "type": "json_schema", "schema": {}, "json_schema": { "schema": {} } }),
            "expected one schema, in `json_schema`",
        ),
        ("structured_outputs", json!({}), "needs one of"),
        ("structured_outputs", json!({ "regex": "a", "choice": ["b"] }), "needs one of"),
        ("structured_outputs", json!({ "regex": "(" }), "cannot be enforced"),
        ("structured_outputs", json!({ "grammar": "start: (" }), "cannot be enforced"),
        (
            "structured_outputs",
            json!({ "structural_tag": "x" }),
            "the server does not know the field `structured_outputs.structural_tag`",
        ),
    ] {
        let mut body = json!({ "prompt": "x", "max_tokens": 5 });
        body[name] = form;
        let answer = server.post("/v1/completions", &body);
        assert_eq!(answer.status, 400, "{body} {}", answer.body);
        assert!(answer.error().contains(words), "{body}: {}", answer.error());
    }
    let folder = model("granite-moe-mini");
    let server = Server::start(folder.path(), &[]);
    let body = json!({ "prompt": "x", "structured_outputs": { "regex": "a" } });
    let answer = server.post("/v1/completions", &body);
    let refused = answer.error().contains("no end-of-sequence token");
    assert!(answer.status == 400 && refused, "{}", answer.body);
}
