//! JSON values of templates, and messages, which are JSON objects.

use super::objects::{Digits, dictionary, list};
use minijinja::Value;
use minijinja::value::ValueKind;
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// A JSON value whose objects keep the order of their keys, like Python's dictionaries: templates print a tool's schema
/// in that order.
#[derive(Debug, Clone, PartialEq)]
pub struct Json(Value);

impl Json {
    /// An object with these keys, in order.
    pub fn object<K: Into<String>>(entries: impl IntoIterator<Item = (K, Self)>) -> Self {
        Self(dictionary(entries.into_iter().map(|(key, value)| (key.into(), value.0))))
    }

    /// An array.
    pub fn array(items: impl IntoIterator<Item = Self>) -> Self {
        Self(list(items.into_iter().map(|item| item.0).collect()))
    }

    /// The value of a key; `None` if there is no such key or this is not an object.
    pub fn get(&self, key: &str) -> Option<Self> {
        let value = self.0.get_attr(key).ok()?;
        (self.is_object() && !value.is_undefined()).then_some(Self(value))
    }

    /// Whether it is an object.
    pub fn is_object(&self) -> bool {
        self.0.kind() == ValueKind::Map
    }

    /// Whether it is null.
    pub fn is_null(&self) -> bool {
        self.0.is_none()
    }

    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        self.0.as_str()
    }

    /// The value of a non-integer number.
    pub(super) fn as_float(&self) -> Option<f64> {
        let is_float = self.0.kind() == ValueKind::Number && !self.0.is_integer();
        is_float.then(|| f64::try_from(self.0.clone()).ok()).flatten()
    }

    /// The digits of a number that neither 64 bits nor a float can represent.
    pub(super) fn as_digits(&self) -> Option<String> {
        self.0.downcast_object_ref::<Digits>().map(|digits| digits.0.clone())
    }

    /// The values of an array.
    pub fn items(&self) -> Option<Vec<Self>> {
        let array = self.0.kind() == ValueKind::Seq;
        array.then(|| self.0.try_iter().into_iter().flatten().map(Self).collect())
    }

    /// The keys and values of an object, in order.
    pub fn entries(&self) -> Option<Vec<(String, Self)>> {
        let object = self.is_object().then(|| self.0.as_object()).flatten()?;
        let entry = |(key, value): (Value, Value)| Some((key.as_str()?.to_owned(), Self(value)));
        object.try_iter_pairs()?.map(entry).collect()
    }

    pub(super) fn from_value(value: Value) -> Self {
        Self(value)
    }

    pub(super) fn value(&self) -> Value {
        self.0.clone()
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json(value.into()))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json(().into()))
    }

    fn visit_none<E>(self) -> Result<Json, E> {
        Ok(Json(().into()))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        Json::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element::<Json>()? {
            all.push(item.0);
        }
        Ok(Json(list(all)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut all = Vec::new();
        while let Some((key, value)) = entries.next_entry::<String, Json>()? {
            all.push((key, value.0));
        }
        Ok(Json(dictionary(all)))
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self(Value::from(text))
    }
}

impl From<String> for Json {
    fn from(text: String) -> Self {
        Self(Value::from(text))
    }
}

impl From<f64> for Json {
    fn from(value: f64) -> Self {
        Self(Value::from(value))
    }
}

impl From<bool> for Json {
    fn from(value: bool) -> Self {
        Self(Value::from(value))
    }
}

/// One message of a conversation: a JSON object with a `role` and the keys that templates read, such as `content` as a
/// string or a list of parts, `tool_calls`, `tool_call_id`, `name` or `reasoning_content`.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatMessage(Json);

impl ChatMessage {
    /// A text message; the role is `system`, `user`, `assistant` or another that the template knows.
    pub fn new(role: &str, content: impl Into<String>) -> Self {
        let content = Json::from(content.into());
        Self(Json::object([("role", Json::from(role)), ("content", content)]))
    }

    /// A message from a JSON object; `None` if it is not an object.
    pub fn from_json(json: Json) -> Option<Self> {
        json.is_object().then_some(Self(json))
    }

    /// The message as JSON.
    pub fn json(&self) -> &Json {
        &self.0
    }

    /// The message as templates receive it, as in transformers 5: null keys are removed, and reasoning is available
    /// under all names that templates read.
    pub(super) fn value(&self) -> Value {
        let mut entries = self.0.entries().unwrap_or_default();
        entries.retain(|(_, value)| !value.is_null());
        let named = |name: &str| entries.iter().position(|(key, _)| key == name);
        let reasoning = ["reasoning_content", "thinking", "reasoning"].into_iter().find_map(named);
        if let Some(reasoning) = reasoning.map(|at| entries[at].1.clone()) {
            let thinking = named("thinking").map(|at| entries.remove(at).1);
            entries.insert(0, ("thinking".to_owned(), thinking.unwrap_or(reasoning.clone())));
            let name = "reasoning_content";
            match entries.iter_mut().find(|(key, _)| key == name) {
                Some((_, value)) => *value = reasoning,
                None => entries.push((name.to_owned(), reasoning)),
            }
        }
        Json::object(entries).0
    }
}

impl<'de> Deserialize<'de> for ChatMessage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let message = Self::from_json(Json::deserialize(deserializer)?);
        message.ok_or_else(|| de::Error::custom("a message is an object with a role"))
    }
}

impl Serialize for ChatMessage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn json_preserves_key_order() {
        let text = r#"{"b":[1,2.5,null,"x"],"a":{"z":true,"y":{}}}"#;
        let value = json(text);
        assert_eq!(serde_json::to_string(&value).unwrap(), text);
        assert_eq!(value.get("b").unwrap().items().unwrap()[3].as_str(), Some("x"));
        assert!(value.get("b").unwrap().items().unwrap()[2].is_null());
        let keys = |value: &Json| value.entries().unwrap().into_iter().map(|(key, _)| key);
        assert_eq!(keys(&value).collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(keys(&value.get("a").unwrap()).collect::<Vec<_>>(), ["z", "y"]);
        assert!(value.get("c").is_none() && value.items().is_none());
        assert!(json("\"b\"").get("b").is_none() && json("3").entries().is_none());
        assert_eq!(json(r#"{"a": 1, "b": 2, "a": 3}"#), json(r#"{"a": 3, "b": 2}"#));
    }

    #[test]
    fn a_message_is_an_object() {
        let error = serde_json::from_str::<ChatMessage>("[]").unwrap_err().to_string();
        assert!(error.starts_with("a message is an object with a role"), "{error}");
        let message = ChatMessage::new("user", "hi");
        assert_eq!(message.json(), &json(r#"{"role": "user", "content": "hi"}"#));
    }

    #[test]
    fn null_keys_are_removed_and_reasoning_is_aliased() {
        let given = |text: &str| {
            let message: ChatMessage = serde_json::from_str(text).unwrap();
            serde_json::to_string(&message.value()).unwrap()
        };
        assert_eq!(
            given(r#"{"role":"a","content":null,"name":"n"}"#),
            r#"{"role":"a","name":"n"}"#
        );
        for (text, want) in [
            (
                r#"{"role":"a","reasoning":"r"}"#,
                r#"{"thinking":"r","role":"a","reasoning":"r","reasoning_content":"r"}"#,
            ),
            (
                r#"{"role":"a","thinking":"t"}"#,
                r#"{"thinking":"t","role":"a","reasoning_content":"t"}"#,
            ),
            (
                r#"{"reasoning_content":"c","thinking":"t","role":"a"}"#,
                r#"{"thinking":"t","reasoning_content":"c","role":"a"}"#,
            ),
        ] {
            assert_eq!(given(text), want);
        }
    }
}
