//! Converts untyped argument text to JSON by the function's schema.

use super::python;
use serde::de::IgnoredAny;
use serde_json::Value;

/// The types that a schema allows, in its order. Without types a value is a string.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Types {
    kinds: Vec<Kind>,
    null: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    String,
    Integer,
    Number,
    Boolean,
    /// An object or an array.
    Container,
}

impl Types {
    /// The types of a property of an object's schema.
    pub(super) fn of_property(schema: &Value, name: &str) -> Self {
        let mut types = Self::default();
        let property = schema.get("properties").and_then(|all| all.get(name));
        if let Some(property) = property.or_else(|| schema.get("additionalProperties")) {
            types.add(property, schema, 0);
        }
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

/// A text as JSON of the first type that matches. Without a match it is a string, which the function's own validation
/// then reports.
pub(super) fn value(text: &str, types: &Types) -> String {
    let trimmed = text.trim();
    let is_null = ["null", "none"].iter().any(|null| trimmed.eq_ignore_ascii_case(null));
    // As in vLLM: a value that is not a string may be null even if the schema does not allow it.
    if is_null && (types.null || types.kinds.first().is_some_and(|kind| *kind != Kind::String)) {
        return "null".to_owned();
    }
    let typed = types.kinds.iter().find_map(|kind| match kind {
        Kind::String => Some(quoted(text)),
        Kind::Integer => python::number(trimmed).filter(|number| !number.contains(['.', 'e', 'E'])),
        Kind::Number => python::number(trimmed),
        Kind::Boolean => ["true", "false"]
            .into_iter()
            .find(|value| trimmed.eq_ignore_ascii_case(value))
            .map(str::to_owned),
        Kind::Container => container(trimmed),
    });
    typed.unwrap_or_else(|| quoted(text))
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// JSON, or a Python literal; either may be quoted.
fn container(text: &str) -> Option<String> {
    let plain = |text: &str| {
        let is_json = serde_json::from_str::<IgnoredAny>(text).is_ok();
        let json = if is_json { Some(text.to_owned()) } else { python::literal(text) };
        json.filter(|json| json.starts_with(['{', '[']))
    };
    plain(text).or_else(|| plain(&serde_json::from_str::<String>(text).ok()?))
}
