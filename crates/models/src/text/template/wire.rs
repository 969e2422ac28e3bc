//! Serializes conversations between processes, one line of JSON each. Floats are sent as bits, because decimals may not
//! round-trip.

use super::objects::number;
use super::{ChatMessage, Conversation, Json};
use serde::{Deserialize, Serialize};

/// The key of an object that represents a float.
const FLOAT: &str = "\u{0}float";
/// The key of an object that represents a number with more digits than 64 bits or a float can represent.
const DIGITS: &str = "\u{0}digits";

#[derive(Serialize, Deserialize)]
struct Line {
    messages: Vec<Json>,
    tools: Option<Vec<Json>>,
    documents: Option<Vec<Json>>,
    add_generation_prompt: bool,
    continue_final_message: bool,
    template: Option<String>,
    kwargs: Vec<(String, Json)>,
}

/// The result for a conversation.
#[derive(Serialize, Deserialize)]
pub(super) enum Reply {
    Text(String),
    /// The problem, and what to do about it.
    Wrong(String, String),
    /// The exceeded limit; the process ends.
    Spent(String),
}

/// Serializes a conversation to a line.
pub(super) fn write(conversation: &Conversation) -> String {
    let all = |list: &[Json]| list.iter().map(|json| mapped(json, &hidden)).collect::<Vec<_>>();
    let messages: Vec<Json> =
        conversation.messages.iter().map(|message| message.json().clone()).collect();
    let line = Line {
        messages: all(&messages),
        tools: conversation.tools.as_deref().map(all),
        documents: conversation.documents.as_deref().map(all),
        add_generation_prompt: conversation.add_generation_prompt,
        continue_final_message: conversation.continue_final_message,
        template: conversation.template.clone(),
        kwargs: conversation
            .kwargs
            .iter()
            .map(|(key, value)| (key.clone(), mapped(value, &hidden)))
            .collect(),
    };
    // JSON of JSON always serializes.
    serde_json::to_string(&line).unwrap_or_default()
}

/// Parses a conversation from a line.
pub(super) fn read(line: &str) -> Result<Conversation, String> {
    let line: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let all = |list: Vec<Json>| list.iter().map(|json| mapped(json, &shown)).collect::<Vec<_>>();
    let messages = all(line.messages).into_iter().map(ChatMessage::from_json);
    Ok(Conversation {
        messages: messages.collect::<Option<_>>().ok_or("a message is no object")?,
        tools: line.tools.map(all),
        documents: line.documents.map(all),
        add_generation_prompt: line.add_generation_prompt,
        continue_final_message: line.continue_final_message,
        template: line.template,
        kwargs: line.kwargs.into_iter().map(|(key, value)| (key, mapped(&value, &shown))).collect(),
    })
}

fn hidden(json: &Json) -> Option<Json> {
    if let Some(digits) = json.as_digits() {
        return Some(Json::object([(DIGITS, Json::from(digits))]));
    }
    let bits = json.as_float()?.to_bits();
    Some(Json::object([(FLOAT, Json::from(bits.to_string()))]))
}

fn shown(json: &Json) -> Option<Json> {
    if let Some(digits) = json.get(DIGITS) {
        let digits = digits.as_str()?;
        return Some(Json::from_value(number(digits, digits.parse().unwrap_or(f64::INFINITY))));
    }
    let bits = json.get(FLOAT)?.as_str()?.parse().ok()?;
    Some(Json::from(f64::from_bits(bits)))
}

/// A value with the parts replaced for which `replace` returns something.
fn mapped(json: &Json, replace: &dyn Fn(&Json) -> Option<Json>) -> Json {
    if let Some(other) = replace(json) {
        other
    } else if let Some(items) = json.items() {
        Json::array(items.iter().map(|item| mapped(item, replace)))
    } else if let Some(entries) = json.entries() {
        Json::object(entries.into_iter().map(|(key, value)| (key, mapped(&value, replace))))
    } else {
        json.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversations_round_trip() {
        let json = |text: &str| serde_json::from_str::<Json>(text).unwrap();
        let numbers = r#"[0.1, 1e300, 2.5, -0.0, 3, 18446744073709551615, {"b": 0.30000000000000004, "a": null}]"#;
        let conversation = Conversation {
            messages: vec![
                ChatMessage::new("user", "a\n\u{2028}\"é😀"),
                ChatMessage::from_json(json(r#"{"role": "x", "n": [1.5, {"y": 0.1}]}"#)).unwrap(),
            ],
            tools: Some(vec![json(numbers)]),
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            template: Some("t".to_owned()),
            kwargs: vec![("k".to_owned(), json("1e-7"))],
        };
        let line = write(&conversation);
        assert!(!line.contains('\n'));
        assert_eq!(read(&line).unwrap(), conversation);
    }
}
