//! Grammar rules for required calls, in the model's format.

use super::{harmony as marks_of_harmony, kimi as marks_of_kimi, mistral as marks_of_mistral};
use crate::calls::Function;
use models::Tokenizer;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// A grammar in llguidance's Lark dialect.
pub(super) struct Grammar<'a> {
    tokenizer: &'a Tokenizer,
    rules: String,
    count: usize,
}

impl<'a> Grammar<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, rules: String::new(), count: 0 }
    }

    /// The grammar with this start rule.
    pub(super) fn finish(self, start: &str) -> String {
        format!("start: {start}\n{}", self.rules)
    }

    /// Adds a rule with attributes; returns its name.
    pub(super) fn rule(&mut self, attributes: &str, body: &str) -> String {
        let name = format!("rule_{}", self.count);
        self.count += 1;
        // Writing to a String cannot fail.
        let _ = writeln!(self.rules, "{name}{attributes}: {body}");
        name
    }

    /// A text that may be a special token.
    pub(super) fn marker(&self, text: &str) -> String {
        match self.special(text) {
            Some(id) => format!("<[{id}]>"),
            None => quoted(text),
        }
    }

    fn special(&self, text: &str) -> Option<u32> {
        self.tokenizer.id(text).filter(|id| self.tokenizer.is_special(*id))
    }

    /// Any text up to and including a marker.
    pub(super) fn text_until(&mut self, marker: &str) -> String {
        match self.special(marker) {
            Some(id) => self.rule("", &format!(r"/(?s:.*)/ <[{id}]>")),
            None => self.rule(&format!("[suffix={}]", quoted(marker)), r"/(?s:.*)/"),
        }
    }

    /// A call as a JSON object with a name and arguments.
    pub(super) fn call(&self, function: &Function, arguments: &str) -> String {
        let call = json!({
            "type": "object", "required": ["name", arguments], "additionalProperties": false,
            "properties": { "name": { "const": function.name }, arguments: function.arguments },
        });
        format!("%json {call}")
    }
}

pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

pub(super) fn harmony(grammar: &mut Grammar<'_>, function: &Function) -> String {
    use marks_of_harmony::{CHANNEL, CONSTRAIN, END, MESSAGE, START};
    let [channel, constrain, message, start] =
        [CHANNEL, CONSTRAIN, MESSAGE, START].map(|marker| grammar.marker(marker));
    let analysis = grammar.text_until(END);
    let analysis = format!(r#"({channel} "analysis" {message} {analysis} {start} "assistant")*"#);
    let to = quoted(&format!("commentary to=functions.{} ", function.name));
    format!(
        r#"{analysis} {channel} {to} {constrain} "json" {message} %json {}"#,
        function.arguments
    )
}

pub(super) fn kimi(grammar: &mut Grammar<'_>, function: &Function) -> String {
    use marks_of_kimi::{ARGUMENTS, CALL, END_CALL, END_SECTION, SECTION};
    let [section, call, arguments, end, end_section] =
        [SECTION, CALL, ARGUMENTS, END_CALL, END_SECTION].map(|marker| grammar.marker(marker));
    let id = quoted(&format!("functions.{}:0", function.name));
    format!("{section} {call} {id} {arguments} %json {} {end} {end_section}", function.arguments)
}

pub(super) fn mistral(grammar: &mut Grammar<'_>, function: &Function) -> String {
    use marks_of_mistral::{ARGUMENTS, CALLS};
    let calls = grammar.marker(CALLS);
    // Tokenizers of version 11 and later have this token, after the function's name.
    match grammar.special(ARGUMENTS) {
        Some(id) => {
            let name = quoted(&function.name);
            format!("{calls} {name} <[{id}]> %json {}", function.arguments)
        }
        None => format!(r#"{calls} "[" {} "]""#, grammar.call(function, "arguments")),
    }
}

/// The properties of a function's arguments, whether each is required, and its schema.
fn properties(function: &Function) -> Vec<(&str, bool, Value)> {
    let schema = &function.arguments;
    let list = |name: &str| schema.get(name).and_then(Value::as_array).into_iter().flatten();
    let properties = schema.get("properties").and_then(Value::as_object);
    let all = properties.into_iter().flatten().map(|(name, property)| {
        let required = list("required").any(|required| required == name.as_str());
        // References point into the whole schema.
        let mut property = property.clone();
        if let Value::Object(property) = &mut property {
            for name in ["$defs", "definitions"] {
                if let Some(all) = schema.get(name) {
                    property.insert(name.to_owned(), all.clone());
                }
            }
        }
        (name.as_str(), required, property)
    });
    all.collect()
}

fn is_string(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "string")
}

/// The values of an enum or const schema.
fn listed(schema: &Value) -> Option<Vec<Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value.clone()]),
        (None, Some(Value::Array(values))) => Some(values.clone()),
        _ => None,
    }
}

pub(super) fn xml(grammar: &mut Grammar<'_>, function: &Function) -> String {
    let [open, close] = ["<tool_call>", "</tool_call>"].map(|marker| grammar.marker(marker));
    let mut rule = format!(r#"{open} {}"#, quoted(&format!("\n<function={}>\n", function.name)));
    for (name, required, schema) in properties(function) {
        const END: &str = "\n</parameter>\n";
        let begin = quoted(&format!("<parameter={name}>\n"));
        let value = match listed(&schema) {
            Some(values) => {
                let text = |value: &Value| match value {
                    Value::String(text) => quoted(text),
                    value => quoted(&value.to_string()),
                };
                let values: Vec<String> = values.iter().map(text).collect();
                format!("({}) {}", values.join(" | "), quoted(END))
            }
            None if is_string(&schema) => grammar.text_until(END),
            None => format!("%json {schema} {}", quoted(END)),
        };
        let parameter = format!("{begin} {value}");
        let _ = match required {
            true => write!(rule, " {parameter}"),
            false => write!(rule, " ({parameter})?"),
        };
    }
    format!(r#"{rule} "</function>\n" {close}"#)
}

/// `[f(a=1, b="x")]`.
pub(super) fn python(grammar: &mut Grammar<'_>, function: &Function) -> String {
    // An optional argument may come first: only required ones are certainly followed by a comma.
    let (required, optional): (Vec<_>, Vec<_>) =
        properties(function).into_iter().partition(|(_, required, _)| *required);
    let mut rule = quoted(&format!("[{}(", function.name));
    for (at, (name, _, schema)) in required.iter().enumerate() {
        let between = if at > 0 { ", " } else { "" };
        let begin = quoted(&format!("{between}{name}="));
        let _ = write!(rule, " {begin} {}", python_value(schema));
    }
    if required.is_empty() {
        let alternatives: Vec<String> = optional
            .iter()
            .map(|(name, _, schema)| {
                format!("{} {}", quoted(&format!("{name}=")), python_value(schema))
            })
            .collect();
        if !alternatives.is_empty() {
            let one = grammar.rule("", &alternatives.join(" | "));
            let _ = write!(rule, " ({one})?");
        }
    } else {
        for (name, _, schema) in &optional {
            let begin = quoted(&format!(", {name}="));
            let _ = write!(rule, " ({begin} {})?", python_value(schema));
        }
    }
    rule + r#" ")]""#
}

fn python_value(schema: &Value) -> String {
    let literal = |value: &Value| match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        value => value.to_string(),
    };
    if let Some(values) = listed(schema) {
        let values: Vec<String> = values.iter().map(|value| quoted(&literal(value))).collect();
        return format!("({})", values.join(" | "));
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("boolean") => r#"("True" | "False")"#.to_owned(),
        Some("null") => r#""None""#.to_owned(),
        _ => format!("%json {schema}"),
    }
}
