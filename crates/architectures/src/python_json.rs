//! JSON as Python's `json` module writes it.

use std::borrow::Cow;

/// Replacement of numbers that JSON lacks: `Infinity`, `-Infinity` and `NaN`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NonFinite {
    /// Objects as in transformers 5: `{"__float__": "Infinity"}`.
    Objects,
    /// The largest finite numbers for infinity, and 0 for NaN, for readers that require numbers.
    Numbers,
}

/// Converts text that Python's `json.dumps` may have written to JSON: bare `Infinity`, `-Infinity` and `NaN` are
/// replaced, and lone surrogates, which Python writes and UTF-8 cannot represent, become U+FFFD.
pub fn strict_json(text: &str, non_finite: NonFinite) -> Cow<'_, str> {
    let mut out = String::new();
    let (mut copied, mut at) = (0, 0);
    let bytes = text.as_bytes();
    while at < bytes.len() {
        let replaced = match bytes[at] {
            b'"' => {
                at = string(text, at, &mut out, &mut copied);
                continue;
            }
            b'I' | b'N' | b'-' => word(&text[at..], non_finite),
            _ => None,
        };
        match replaced {
            Some((length, with)) => {
                out.push_str(&text[copied..at]);
                out.push_str(with);
                at += length;
                copied = at;
            }
            None => at += 1,
        }
    }
    match copied {
        0 => Cow::Borrowed(text),
        _ => Cow::Owned(out + &text[copied..]),
    }
}

/// The length of a number that JSON lacks at the start of a text, and its replacement.
fn word(text: &str, non_finite: NonFinite) -> Option<(usize, &'static str)> {
    let words = [
        ("Infinity", r#"{"__float__": "Infinity"}"#, "1.7976931348623157e308"),
        ("-Infinity", r#"{"__float__": "-Infinity"}"#, "-1.7976931348623157e308"),
        ("NaN", r#"{"__float__": "NaN"}"#, "0.0"),
    ];
    let (word, object, number) = words.into_iter().find(|(word, ..)| text.starts_with(word))?;
    let with = match non_finite {
        NonFinite::Objects => object,
        NonFinite::Numbers => number,
    };
    Some((word.len(), with))
}

/// The end of the string that begins at `start`. Escapes of lone surrogates are replaced.
fn string(text: &str, start: usize, out: &mut String, copied: &mut usize) -> usize {
    let bytes = text.as_bytes();
    let unit = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        let hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        u16::from_str_radix(digits, 16).ok().filter(|_| hex)
    };
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => return at + 1,
            b'\\' => match (unit(at), unit(at + 6)) {
                (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => at += 12,
                (Some(0xd800..=0xdfff), _) => {
                    out.push_str(&text[*copied..at]);
                    out.push_str("\\ufffd");
                    at += 6;
                    *copied = at;
                }
                _ => at += 2,
            },
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn numbers_that_json_lacks_are_replaced_outside_strings() {
        let text = r#"{"a": [0.0, Infinity], "b": -Infinity, "c":NaN, "d": "NaN \" -Infinity", "e": -1, "Infinity": "é"}"#;
        let float = |word: &str| json!({ "__float__": word });
        let read = |how| serde_json::from_str::<Value>(&strict_json(text, how)).unwrap();
        let objects = read(NonFinite::Objects);
        assert_eq!(objects["a"], json!([0.0, float("Infinity")]));
        assert_eq!(objects["b"], float("-Infinity"));
        assert_eq!(objects["c"], float("NaN"));
        assert_eq!(objects["d"], r#"NaN " -Infinity"#);
        assert_eq!((&objects["e"], &objects["Infinity"]), (&json!(-1), &json!("é")));
        assert_eq!(read(NonFinite::Numbers)["a"], json!([0.0, f64::MAX]));
        assert_eq!(read(NonFinite::Numbers)["b"], json!(f64::MIN));
    }

    #[test]
    fn halves_of_surrogate_pairs_are_replaced() {
        let text = r#"["\ud83d\ude00", "\ud83d", "\ude00x", "\\ud83d", "\ud83d\ud83d\ude00"]"#;
        let read: Value = serde_json::from_str(&strict_json(text, NonFinite::Objects)).unwrap();
        assert_eq!(read, json!(["😀", "\u{fffd}", "\u{fffd}x", "\\ud83d", "\u{fffd}😀"]));
    }

    #[test]
    fn other_texts_stay_as_they_are() {
        for text in ["{}", "", "\"", "{\"a\": \"x\\", "Inf", "[nan]", "\"\\u12", "[1, -2.5e3]"] {
            assert!(
                matches!(strict_json(text, NonFinite::Objects), Cow::Borrowed(same) if same == text)
            );
        }
    }
}
