//! Converts untyped argument text to JSON by the function's schema.

use super::python;
use serde::de::IgnoredAny;
use serde_json::Value;

/// The types that a schema allows, in the order in which vLLM tries them. Without types a value is a string.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Types {
    kinds: Vec<Kind>,
    null: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Integer,
    Number,
    Boolean,
    /// An object or an array.
    Container,
    /// Matches every text.
    String,
}

impl Types {
    /// The types of a property of an object's schema.
    pub(super) fn of_property(schema: &Value, name: &str) -> Self {
        let mut types = Self::default();
        let property = schema.get("properties").and_then(|all| all.get(name));
        if let Some(property) = property.or_else(|| schema.get("additionalProperties")) {
            types.add(property, schema, 0);
        }
        types.kinds.sort_unstable();
        types
    }

    /// Whether every text is a valid value.
    pub(super) fn is_string(&self) -> bool {
        !self.null && matches!(self.kinds.first(), None | Some(Kind::String))
    }

    fn add(&mut self, schema: &Value, root: &Value, depth: usize) {
        /// Maximum depth of references, which may be cyclic.
        const DEPTH: usize = 8;
        if depth > DEPTH {
            return;
        }
        if let Some(path) = schema.get("$ref").and_then(Value::as_str)
            && let Some(target) = path.strip_prefix('#').and_then(|path| root.pointer(path))
        {
            self.add(target, root, depth + 1);
        }
        match schema.get("type") {
            Some(Value::String(name)) => self.add_name(name),
            Some(Value::Array(names)) => {
                names.iter().filter_map(Value::as_str).for_each(|name| self.add_name(name));
            }
            _ => {
                let listed = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
                listed.chain(schema.get("const")).for_each(|value| self.add_value(value));
            }
        }
        for name in ["anyOf", "oneOf", "allOf"] {
            let all = schema.get(name).and_then(Value::as_array).into_iter().flatten();
            all.for_each(|schema| self.add(schema, root, depth + 1));
        }
    }

    fn add_kind(&mut self, kind: Kind) {
        if !self.kinds.contains(&kind) {
            self.kinds.push(kind);
        }
    }

    /// Adds a type by any of the names in vLLM, which include those of other languages.
    fn add_name(&mut self, name: &str) {
        let name = name.trim().to_ascii_lowercase();
        let begins = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
        match name.as_str() {
            "null" => self.null = true,
            "boolean" | "bool" | "binary" => self.add_kind(Kind::Boolean),
            "object" | "array" | "arr" => self.add_kind(Kind::Container),
            _ if begins(&["dict", "list"]) => self.add_kind(Kind::Container),
            _ if begins(&["int", "uint", "long", "short", "unsigned"]) => {
                self.add_kind(Kind::Integer)
            }
            _ if begins(&["num", "float", "double"]) => self.add_kind(Kind::Number),
            _ => self.add_kind(Kind::String),
        }
    }

    fn add_value(&mut self, value: &Value) {
        match value {
            Value::Null => self.null = true,
            Value::Bool(_) => self.add_kind(Kind::Boolean),
            Value::Number(number) if number.is_f64() => self.add_kind(Kind::Number),
            Value::Number(_) => self.add_kind(Kind::Integer),
            Value::String(_) => self.add_kind(Kind::String),
            Value::Array(_) | Value::Object(_) => self.add_kind(Kind::Container),
        }
    }
}

/// A text as JSON of the first type that matches. Without a match it is the JSON that it contains, or else a string; the
/// function's own validation then reports it.
pub(super) fn value(text: &str, types: &Types) -> String {
    let trimmed = text.trim();
    let is = |word: &str| trimmed.eq_ignore_ascii_case(word);
    // As in vLLM: a value that is not a string may be null even if the schema does not allow it.
    let is_never_string = types.kinds.last().is_some_and(|kind| *kind != Kind::String);
    if (is("null") && (types.null || is_never_string)) || (is("none") && is_never_string) {
        return "null".to_owned();
    }
    let typed = types.kinds.iter().find_map(|kind| match kind {
        Kind::String => Some(quoted(text)),
        Kind::Integer => python::number(trimmed).filter(|number| !number.contains(['.', 'e', 'E'])),
        Kind::Number => python::number(trimmed),
        Kind::Boolean if is("true") || is("1") => Some("true".to_owned()),
        Kind::Boolean if is("false") || is("0") => Some("false".to_owned()),
        Kind::Boolean => None,
        Kind::Container => container(trimmed),
    });
    let has_types = types.null || !types.kinds.is_empty();
    let json = || (has_types && is_json(trimmed)).then(|| trimmed.to_owned());
    typed.or_else(json).unwrap_or_else(|| quoted(text))
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// JSON, or a Python literal; either may be quoted.
fn container(text: &str) -> Option<String> {
    let plain = |text: &str| {
        let json = if is_json(text) { Some(text.to_owned()) } else { python::literal(text) };
        json.filter(|json| json.starts_with(['{', '[']))
    };
    plain(text).or_else(|| plain(&serde_json::from_str::<String>(text).ok()?))
}
