//! Python's formatting of values: `str`, `repr` and `json.dumps`.

use super::objects::Digits;
use facts::CompactSort;
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};
use std::fmt::Write as _;

/// `str(value)`; empty for undefined values, as in Jinja.
pub(super) fn text(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None if value.is_undefined() => String::new(),
        None => repr(value),
    }
}

/// `repr(value)`.
pub(super) fn repr(value: &Value) -> String {
    if let Some(text) = value.as_str() {
        return quoted(text);
    }
    match (value.kind(), value.as_object()) {
        (ValueKind::Map, Some(object)) => {
            let pairs = object.try_iter_pairs().into_iter().flatten();
            let pairs = pairs.map(|(key, value)| format!("{}: {}", repr(&key), repr(&value)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
        (ValueKind::Seq | ValueKind::Iterable, _) => {
            let items = value.try_iter().into_iter().flatten().map(|item| repr(&item));
            format!("[{}]", items.collect::<Vec<_>>().join(", "))
        }
        (ValueKind::Undefined, _) => "Undefined".to_owned(),
        (ValueKind::Number, _) if !value.is_integer() => float(value),
        // minijinja prints True, False and None as Python does.
        _ => value.to_string(),
    }
}

/// `repr` of a float: the shortest digits that round-trip, with an exponent from 1e16 on and below 1e-4.
fn float(value: &Value) -> String {
    let Ok(number) = f64::try_from(value.clone()) else { return value.to_string() };
    if !number.is_finite() {
        let sign = if number < 0.0 { "-" } else { "" };
        return if number.is_nan() { "nan".to_owned() } else { format!("{sign}inf") };
    }
    let shortest = format!("{number:e}");
    let (digits, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        -4..16 => {
            let plain = number.to_string();
            if plain.contains('.') { plain } else { plain + ".0" }
        }
        exponent => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
    }
}

/// `repr` of a string.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out += "\\\\",
            '\n' => out += "\\n",
            '\r' => out += "\\r",
            '\t' => out += "\\t",
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                // Writing to a String cannot fail.
                let _ = match code {
                    0..0x100 => write!(out, "\\x{code:02x}"),
                    0x100..0x1_0000 => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
    out
}

/// Whether Python prints a character unescaped. Rust escapes the same ones, and combining marks without a base
/// character.
fn is_printable(c: char) -> bool {
    matches!(c, '\'' | '"') || ['a', c].iter().collect::<String>().escape_debug().nth(1) == Some(c)
}

/// The arguments of `json.dumps`.
pub(super) struct JsonDumps {
    pub(super) ensure_ascii: bool,
    /// Indentation per level; `None` for one line.
    pub(super) indent: Option<String>,
    /// Item and key separators.
    pub(super) separators: [String; 2],
    pub(super) sort_keys: bool,
}

impl JsonDumps {
    /// The value as JSON.
    ///
    /// # Errors
    /// As in Python: undefined values and values without a JSON form cannot be written.
    pub(super) fn text(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(value, 0, &mut out)?;
        Ok(out)
    }

    fn write(&self, value: &Value, level: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.between(['[', ']'], &items, level, out, |item, out| {
                    self.write(item, level + 1, out)
                })?;
            }
            ValueKind::Map => {
                let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
                let key = |(key, value): (Value, Value)| Ok::<_, Error>((self.key(&key)?, value));
                let pairs: Result<Vec<_>, Error> = pairs.into_iter().flatten().map(key).collect();
                let mut pairs = pairs?;
                if self.sort_keys {
                    pairs.compact_sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.between(['{', '}'], &pairs, level, out, |(key, value), out| {
                    self.string(key, out);
                    out.push_str(&self.separators[1]);
                    self.write(value, level + 1, out)
                })?;
            }
            kind => {
                if let Some(digits) = value.downcast_object_ref::<Digits>() {
                    out.push_str(&digits.0);
                    return Ok(());
                }
                let name =
                    if value.is_undefined() { "Undefined".to_owned() } else { kind.to_string() };
                let what = format!("Object of type {name} is not JSON serializable");
                return Err(Error::new(ErrorKind::BadSerialization, what));
            }
        }
        Ok(())
    }

    fn between<T>(
        &self,
        [open, close]: [char; 2],
        items: &[T],
        level: usize,
        out: &mut String,
        mut write: impl FnMut(&T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |level: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                out.push_str(&indent.repeat(level));
            }
        };
        out.push(open);
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                out.push_str(&self.separators[0]);
            }
            line(level + 1, out);
            write(item, out)?;
        }
        if !items.is_empty() {
            line(level, out);
        }
        out.push(close);
        Ok(())
    }

    fn key(&self, key: &Value) -> Result<String, Error> {
        Ok(match key.kind() {
            ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
            ValueKind::None => "null".to_owned(),
            ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
            ValueKind::Number => number(key),
            kind => {
                let what = format!("keys must be str, int, float, bool or None, not {kind}");
                return Err(Error::new(ErrorKind::BadSerialization, what));
            }
        })
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a String cannot fail.
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// A number in JSON, with Python's names of NaN and infinities.
fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(number) if number.is_nan() => "NaN".to_owned(),
        Ok(number) if number.is_infinite() => {
            if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
        }
        _ => repr(value),
    }
}

/// White space of `str.isspace`: Unicode's, and ASCII's four separators.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}
