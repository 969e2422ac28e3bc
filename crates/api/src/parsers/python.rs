//! Converts Python literals and calls to JSON: some models write calls in Python, `f(a=1, b="x", c=[True, None])`.

use serde_json::Value;
use std::fmt::Write as _;

/// A call: its name, and its arguments as the text of a JSON object.
pub(super) type PythonCall = (String, String);

/// The calls of `[f(a=1), g()]`, of `f(a=1)`, or of one call per line.
pub(super) fn calls(text: &str) -> Option<Vec<PythonCall>> {
    let mut cursor = Cursor { rest: text };
    cursor.blank();
    let listed = cursor.take("[");
    let mut calls = Vec::new();
    loop {
        cursor.blank();
        if cursor.rest.is_empty() || cursor.rest.starts_with(']') {
            break;
        }
        calls.push(cursor.call()?);
        cursor.blank();
        // Calls outside of a list may be separated by line breaks only.
        if !cursor.take(",") && listed {
            break;
        }
    }
    let closed = !listed || cursor.take("]");
    cursor.blank();
    (closed && cursor.rest.is_empty() && !calls.is_empty()).then_some(calls)
}

/// A literal as JSON.
pub(super) fn literal(text: &str) -> Option<String> {
    let mut cursor = Cursor { rest: text };
    let mut json = String::new();
    cursor.blank();
    cursor.value(&mut json, 0)?;
    cursor.blank();
    cursor.rest.is_empty().then_some(json)
}

/// A number of JSON or Python as JSON, with its digits unchanged.
pub(super) fn number(text: &str) -> Option<String> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = match digits.contains('_') {
        false => digits.to_owned(),
        true if digits.starts_with('_') || digits.ends_with('_') || digits.contains("__") => {
            return None;
        }
        true => digits.replace('_', ""),
    };
    for (prefix, radix) in [("0x", 16), ("0o", 8), ("0b", 2)] {
        if let Some(digits) = digits.to_ascii_lowercase().strip_prefix(prefix) {
            let number = u128::from_str_radix(digits, radix).ok()?;
            return Some(format!("{sign}{number}"));
        }
    }
    let (mantissa, exponent) = match digits.find(['e', 'E']) {
        Some(at) => (&digits[..at], &digits[at..]),
        None => (digits.as_str(), ""),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let power = exponent.get(1..).map(|power| power.strip_prefix(['+', '-']).unwrap_or(power));
    let some = !whole.is_empty() || fraction.is_some_and(|fraction| !fraction.is_empty());
    if !some
        || power.is_some_and(str::is_empty)
        || ![whole, fraction.unwrap_or(""), power.unwrap_or("")].into_iter().all(are_digits)
    {
        return None;
    }
    let whole = match whole.trim_start_matches('0') {
        "" => "0",
        whole => whole,
    };
    let fraction = fraction.map_or(String::new(), |fraction| {
        format!(".{}", if fraction.is_empty() { "0" } else { fraction })
    });
    Some(format!("{sign}{whole}{fraction}{exponent}"))
}

struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    fn blank(&mut self) {
        self.rest = self.rest.trim_start();
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

    fn while_matches(&mut self, matches: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest;
        let end = rest.find(|c| !matches(c)).unwrap_or(rest.len());
        self.rest = &rest[end..];
        &rest[..end]
    }

    /// A name; a function's name may have dots and hyphens.
    fn name(&mut self, more: &[char]) -> Option<&'a str> {
        let name = self.while_matches(|c| c.is_alphanumeric() || c == '_' || more.contains(&c));
        (!name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit())).then_some(name)
    }

    fn call(&mut self) -> Option<PythonCall> {
        let name = self.name(&['.', '-'])?.to_owned();
        self.blank();
        if !self.take("(") {
            return None;
        }
        let mut json = String::from("{");
        loop {
            self.blank();
            if self.take(")") {
                break;
            }
            if json.len() > 1 {
                json.push_str(", ");
            }
            let argument = self.name(&[])?;
            self.blank();
            if !self.take("=") {
                return None;
            }
            let _ = write!(json, "{}: ", Value::from(argument));
            self.blank();
            self.value(&mut json, 0)?;
            self.blank();
            if !self.take(",") && !self.rest.starts_with(')') {
                return None;
            }
        }
        json.push('}');
        Some((name, json))
    }

    fn value(&mut self, json: &mut String, depth: usize) -> Option<()> {
        /// Maximum nesting of containers.
        const DEPTH: usize = 64;
        if depth > DEPTH {
            return None;
        }
        match self.rest.chars().next()? {
            '[' => self.items("[", "]", json, depth),
            '(' => self.items("(", ")", json, depth),
            '{' => self.pairs(json, depth),
            '"' | '\'' => {
                let text = self.strings()?;
                json.push_str(&Value::from(text).to_string());
                Some(())
            }
            '0'..='9' | '+' | '-' | '.' => {
                let text = self.while_matches(|c| {
                    c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_')
                });
                json.push_str(&number(text)?);
                Some(())
            }
            _ => {
                let word = self.name(&[])?;
                if matches!(word, "r" | "R" | "u" | "U") && self.rest.starts_with(['"', '\'']) {
                    let text = if word.eq_ignore_ascii_case("r") {
                        self.string(true)
                    } else {
                        self.strings()
                    };
                    json.push_str(&Value::from(text?).to_string());
                    return Some(());
                }
                json.push_str(match word {
                    "True" | "true" => "true",
                    "False" | "false" => "false",
                    "None" | "null" => "null",
                    _ => return None,
                });
                Some(())
            }
        }
    }

    fn items(&mut self, open: &str, close: &str, json: &mut String, depth: usize) -> Option<()> {
        self.take(open);
        json.push('[');
        let begin = json.len();
        loop {
            self.blank();
            if self.take(close) {
                break;
            }
            if json.len() > begin {
                json.push_str(", ");
            }
            self.value(json, depth + 1)?;
            self.blank();
            if !self.take(",") && !self.rest.starts_with(close) {
                return None;
            }
        }
        json.push(']');
        Some(())
    }

    fn pairs(&mut self, json: &mut String, depth: usize) -> Option<()> {
        self.take("{");
        json.push('{');
        let begin = json.len();
        loop {
            self.blank();
            if self.take("}") {
                break;
            }
            if json.len() > begin {
                json.push_str(", ");
            }
            let mut key = String::new();
            self.value(&mut key, depth + 1)?;
            // JSON's keys are strings.
            match key.starts_with('"') {
                true => json.push_str(&key),
                false => json.push_str(&Value::from(key).to_string()),
            }
            self.blank();
            if !self.take(":") {
                return None;
            }
            json.push_str(": ");
            self.blank();
            self.value(json, depth + 1)?;
            self.blank();
            if !self.take(",") && !self.rest.starts_with('}') {
                return None;
            }
        }
        json.push('}');
        Some(())
    }

    /// A string, joined with adjacent strings as in Python.
    fn strings(&mut self) -> Option<String> {
        let mut text = self.string(false)?;
        loop {
            let before = self.rest;
            self.blank();
            if !self.rest.starts_with(['"', '\'']) {
                self.rest = before;
                return Some(text);
            }
            text += &self.string(false)?;
        }
    }

    fn string(&mut self, raw: bool) -> Option<String> {
        let quote =
            ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| self.rest.starts_with(quote))?;
        self.take(quote);
        let mut text = String::new();
        loop {
            if self.take(quote) {
                return Some(text);
            }
            let plain = self.while_matches(|c| c != '\\' && !quote.starts_with(c));
            text.push_str(plain);
            if self.rest.starts_with(quote) {
                continue;
            }
            let c = self.rest.chars().next()?;
            self.rest = &self.rest[c.len_utf8()..];
            if c != '\\' {
                text.push(c);
            } else if raw {
                text.push('\\');
                let next = self.rest.chars().next()?;
                self.rest = &self.rest[next.len_utf8()..];
                text.push(next);
            } else {
                self.escape(&mut text)?;
            }
        }
    }

    fn escape(&mut self, text: &mut String) -> Option<()> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        let plain = match c {
            '\n' => return Some(()),
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'v' => '\u{b}',
            'a' => '\u{7}',
            '0' => '\0',
            '\\' | '\'' | '"' | '/' => c,
            'x' => char::from_u32(self.hex(2)?)?,
            'U' => char::from_u32(self.hex(8)?)?,
            'u' => {
                let unit = self.hex(4)?;
                // A surrogate pair, as in JSON.
                match char::from_u32(unit) {
                    Some(c) => c,
                    None => {
                        let low = self.take("\\u").then(|| self.hex(4)).flatten()?;
                        let units = [u16::try_from(unit).ok()?, u16::try_from(low).ok()?];
                        char::decode_utf16(units).next()?.ok()?
                    }
                }
            }
            // Python keeps an unknown escape.
            other => {
                text.push('\\');
                other
            }
        };
        text.push(plain);
        Some(())
    }

    fn hex(&mut self, digits: usize) -> Option<u32> {
        let text = self.rest.get(..digits)?;
        let value = u32::from_str_radix(text, 16).ok()?;
        self.rest = &self.rest[digits..];
        Some(value)
    }
}
