//! Parses arguments of tool calls in a conversation: JSON as a model wrote it, possibly invalid or truncated.

use super::Json;
use super::objects::{dictionary, list, number};
use minijinja::Value;
use serde::de::IgnoredAny;

/// Maximum nesting depth.
const DEPTH: usize = 128;

/// Parses a call's arguments to an object. Numbers keep their digits. Invalid JSON, as models write it or `max_tokens`
/// truncates it, is read up to the error, so that a conversation with such a call can continue. Empty text, as some
/// clients send it, means no arguments.
///
/// `None` for JSON that is not an object.
pub fn call_arguments(text: &str) -> Option<Json> {
    let mut reader = Reader { rest: text.trim_start(), broken: false };
    let value = reader.value(0);
    reader.blank();
    match value {
        Some(value) if text.trim_start().starts_with('{') => Some(Json::from_value(value)),
        Some(_) if !reader.broken && reader.rest.is_empty() => None,
        _ => Some(Json::from_value(dictionary([]))),
    }
}

struct Reader<'a> {
    rest: &'a str,
    /// Whether the text is invalid from here on.
    broken: bool,
}

impl<'a> Reader<'a> {
    fn blank(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\n', '\r', '\t']);
    }

    fn take(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn fail<T>(&mut self) -> Option<T> {
        self.broken = true;
        None
    }

    /// A value, or the part of it before the error.
    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > DEPTH {
            return self.fail();
        }
        self.blank();
        match self.rest.bytes().next() {
            Some(b'{') => Some(self.object(depth)),
            Some(b'[') => Some(self.array(depth)),
            Some(b'"') => self.string().map(Value::from),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                let words =
                    [("true", Value::from(true)), ("false", false.into()), ("null", ().into())];
                let found = words.into_iter().find(|(word, _)| self.rest.starts_with(word));
                let Some((word, value)) = found else { return self.fail() };
                self.take(word);
                Some(value)
            }
        }
    }

    /// After a value in a container: whether another one follows.
    fn another(&mut self, close: &str) -> bool {
        self.blank();
        if self.broken || self.take(close) {
            return false;
        }
        let another = self.take(",");
        self.broken = !another;
        another
    }

    fn object(&mut self, depth: usize) -> Value {
        let mut entries = Vec::new();
        self.take("{");
        self.blank();
        if self.take("}") {
            return dictionary(entries);
        }
        loop {
            self.blank();
            let Some(key) = self.string().filter(|_| !self.broken) else { break };
            self.blank();
            if !self.take(":") {
                self.broken = true;
                break;
            }
            entries.extend(self.value(depth + 1).map(|value| (key, value)));
            if !self.another("}") {
                break;
            }
        }
        dictionary(entries)
    }

    fn array(&mut self, depth: usize) -> Value {
        let mut items = Vec::new();
        self.take("[");
        self.blank();
        if self.take("]") {
            return list(items);
        }
        loop {
            items.extend(self.value(depth + 1));
            if !self.another("]") {
                break;
            }
        }
        list(items)
    }

    /// A string, possibly truncated. Control characters need not be escaped.
    fn string(&mut self) -> Option<String> {
        if !self.take("\"") {
            return self.fail();
        }
        let mut text = String::new();
        loop {
            let end = self.rest.find(['"', '\\']).unwrap_or(self.rest.len());
            text.push_str(&self.rest[..end]);
            self.rest = &self.rest[end..];
            if self.take("\"") {
                return Some(text);
            }
            self.take("\\");
            match self.escape() {
                Some(c) => text.push(c),
                None => {
                    self.broken = true;
                    return Some(text);
                }
            }
        }
    }

    fn escape(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        match c {
            '"' | '\\' | '/' => Some(c),
            'b' => Some('\u{8}'),
            'f' => Some('\u{c}'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'u' => {
                let high = self.unit()?;
                let low = match high {
                    0xd800..0xdc00 if self.take("\\u") => Some(self.unit()?),
                    _ => None,
                };
                let mut decoded = char::decode_utf16([high].into_iter().chain(low));
                decoded.next()?.ok()
            }
            _ => None,
        }
    }

    fn unit(&mut self) -> Option<u16> {
        let digits =
            self.rest.get(..4).filter(|digits| digits.bytes().all(|d| d.is_ascii_hexdigit()))?;
        self.rest = &self.rest[4..];
        u16::from_str_radix(digits, 16).ok()
    }

    fn number(&mut self) -> Option<Value> {
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        // Only the JSON grammar matters: numbers beyond a float's range are valid, and infinite as floats.
        let is_number = serde_json::from_str::<IgnoredAny>(digits).is_ok();
        match digits.parse() {
            Ok(value) if is_number => Some(number(digits, value)),
            _ => self.fail(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::python::JsonDumps;
    use super::*;

    fn written(text: &str) -> Option<String> {
        let dumps = JsonDumps {
            ensure_ascii: false,
            indent: None,
            separators: [", ".to_owned(), ": ".to_owned()],
            sort_keys: false,
        };
        call_arguments(text).map(|json| dumps.text(&json.value()).unwrap())
    }

    #[test]
    fn number_digits_are_preserved() {
        for text in [
            r#"{"a": 18446744073709551617, "b": -170141183460469231731687303715884105729}"#,
            r#"{"a": 0.1000000000000000000001, "b": [1.5, 2.0, -0.0], "c": 1e400, "d": -1e999}"#,
            r#"{"a": 9007199254740993, "b": {"c": 123456789012345678901234567890.5}}"#,
        ] {
            assert_eq!(written(text).as_deref(), Some(text));
        }
        // Python's format of exact floats.
        assert_eq!(written(r#"{"a": 1E2, "b": 1.50}"#).unwrap(), r#"{"a": 100.0, "b": 1.5}"#);
    }

    #[test]
    fn invalid_arguments_are_read_up_to_the_error() {
        for (text, want) in [
            ("", "{}"),
            ("  ", "{}"),
            ("nothing", "{}"),
            ("{", "{}"),
            (r#"{"a": "#, "{}"),
            (r#"{"a"#, "{}"),
            (r#"{"a": "Ul"#, r#"{"a": "Ul"}"#),
            (r#"{"a": "x\u00"#, r#"{"a": "x"}"#),
            (r#"{"a": [1, {"b": "c"#, r#"{"a": [1, {"b": "c"}]}"#),
            (r#"{"a": 1, b: 2}"#, r#"{"a": 1}"#),
            (r#"{"a": tru"#, "{}"),
            // Number formats of other languages.
            (r#"{"a": 01}"#, "{}"),
            (r#"{"a": 1.}"#, "{}"),
            (r#"{"a": 1, "b": -}"#, r#"{"a": 1}"#),
            (r#"{"a": 1} and more"#, r#"{"a": 1}"#),
            (r#"{"a": 1}}"#, r#"{"a": 1}"#),
            ("{\"a\": \"two\nlines\"}", r#"{"a": "two\nlines"}"#),
            (r#"{"a": "\ud83d\ude00 \"q\""}"#, "{\"a\": \"\u{1F600} \\\"q\\\"\"}"),
            (r#"{"a": 1,}"#, r#"{"a": 1}"#),
            ("[1, ", "{}"),
        ] {
            assert_eq!(written(text).as_deref(), Some(want), "{text}");
        }
        let deep = format!("{{\"a\": {}", "[".repeat(100_000));
        assert!(written(&deep).is_some());
    }

    #[test]
    fn non_objects_are_not_arguments() {
        for text in ["5", "null", "true", r#""text""#, "[1]", " -1.5 "] {
            assert_eq!(call_arguments(text), None, "{text}");
        }
    }
}
