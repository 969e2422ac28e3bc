//! Answers in every format, streamed in two pieces cut at every position.

mod formats;
mod hostile;
mod reasoning;

use super::*;
use serde_json::{Value, json};

/// Functions whose arguments have every type.
pub(super) fn functions() -> Arc<[Function]> {
    let f = json!({ "type": "object", "properties": {
        "city": { "type": "string" }, "days": { "type": "integer" }, "share": { "type": "number" },
        "dry": { "type": "boolean" }, "list": { "type": "array" }, "object": { "type": "object" },
        "note": { "type": ["string", "null"] }, "unit": { "enum": ["C", "F"] },
        "mixed": { "type": ["string", "integer"] },
        "either": { "anyOf": [{ "type": "integer" }, { "type": "string" }] },
        "reference": { "$ref": "#/$defs/count" },
    }, "$defs": { "count": { "type": "integer" } } });
    let function = |name: &str, arguments: Value| Function { name: name.to_owned(), arguments };
    Arc::new([function("f", f), function("g", json!({ "type": "object" }))])
}

pub(super) fn plan(tool_call_parser: &str, reasoning_parser: &str, prompt: &str) -> Plan {
    let model_format = ModelFormat::new(None, Some(tool_call_parser), Some(reasoning_parser));
    Plan::new(model_format, Some(functions()), true, prompt).unwrap()
}

/// The events of an answer that arrives in pieces, with adjacent events of a kind joined.
pub(super) fn parse(plan: &Plan, pieces: &[&str], cut: bool) -> Vec<Event> {
    let mut parser = Parser::new(plan, 7);
    let mut events: Vec<Event> = Vec::new();
    let mut add = |more: Vec<Event>| {
        for event in more {
            match (events.last_mut(), event) {
                (Some(Event::Content(last)), Event::Content(text))
                | (Some(Event::Reasoning(last)), Event::Reasoning(text)) => *last += &text,
                (
                    Some(Event::CallArguments { text: last, .. }),
                    Event::CallArguments { text, .. },
                ) => *last += &text,
                (_, event) => events.push(event),
            }
        }
    };
    for piece in pieces {
        add(parser.push(piece));
    }
    add(parser.finish(cut));
    events
}

/// The events of an answer, which must not depend on how it is cut into pieces.
pub(super) fn check_cuts(plan: &Plan, text: &str, cut: bool) -> Vec<Event> {
    let whole = parse(plan, &[text], cut);
    let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    for &at in &places {
        assert_eq!(parse(plan, &[&text[..at], &text[at..]], cut), whole, "{text:?} cut at {at}");
    }
    let characters: Vec<String> = text.chars().map(String::from).collect();
    let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
    assert_eq!(parse(plan, &characters, cut), whole, "{text:?} by characters");
    let mut random = 1u64;
    for _ in 0..200 {
        let mut pieces = Vec::new();
        let mut begin = 0;
        for &at in &places {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if random >> 61 == 0 {
                pieces.push(&text[begin..at]);
                begin = at;
            }
        }
        pieces.push(&text[begin..]);
        assert_eq!(parse(plan, &pieces, cut), whole, "{pieces:?}");
    }
    whole
}

pub(super) fn message(events: Vec<Event>) -> Message {
    let mut message = Message::default();
    events.into_iter().for_each(|event| message.add(event));
    message
}

/// Checks a complete answer: its content, and the names and arguments of its calls.
#[track_caller]
pub(super) fn check(parser: &str, text: &str, content: &str, calls: &[(&str, &str)]) {
    let plan = plan(parser, "deepseek_v3", "");
    let message = message(check_cuts(&plan, text, false));
    let found: Vec<(&str, &str)> =
        message.calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
    assert_eq!((message.content.as_str(), found), (content, calls.to_vec()), "{parser}: {text}");
}
