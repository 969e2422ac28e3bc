//! Bounds derived from a tokenizer.json: how much normalizers lengthen a text, and its minimum number of tokens.

use serde::Deserialize;
use serde_json::Value;

/// The parts of a tokenizer.json that determine the bounds.
#[derive(Deserialize)]
pub(super) struct Parts {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    model: Model,
}

#[derive(Deserialize, Default)]
struct AddedToken {
    #[serde(default)]
    content: String,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

#[derive(Deserialize, Default)]
struct Model {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    byte_fallback: bool,
}

/// Bounds of a normalizer's output: at most `factor` times the bytes plus `more`, and at least `least` times the bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LengthBounds {
    pub(super) factor: f64,
    pub(super) more: f64,
    pub(super) least: f64,
}

impl LengthBounds {
    const NONE: Self = Self { factor: 1.0, more: 0.0, least: 1.0 };

    fn within(factor: f64, least: f64) -> Self {
        Self { factor, more: 0.0, least }
    }

    fn then(self, next: Self) -> Self {
        Self {
            factor: self.factor * next.factor,
            more: self.more * next.factor + next.more,
            least: self.least * next.least,
        }
    }

    /// Maximum bytes after normalization.
    pub(super) fn most(self, bytes: usize) -> f64 {
        self.factor * bytes as f64 + self.more
    }
}

/// The insertions of a normalizer.
#[derive(Debug, Clone)]
pub(super) struct Normalizer {
    pub(super) growth: LengthBounds,
    inserts: Vec<Insert>,
}

#[derive(Debug, Clone)]
enum Insert {
    Before(String),
    Instead {
        pattern: String,
        content: String,
    },
    /// By a regular expression, which may match between any two bytes.
    Anywhere(usize),
}

/// Normalized texts up to this many bytes are never refused; longer ones may be at most this many times as long as the
/// text.
const NEVER_TOO_LONG: usize = 8 << 20;
const TIMES: usize = 4;

impl Normalizer {
    /// Refuses a text that normalization would lengthen too much.
    ///
    /// # Errors
    /// One sentence.
    pub(super) fn check(&self, text: &str) -> Result<(), String> {
        let most = NEVER_TOO_LONG.max(text.len().saturating_mul(TIMES));
        if self.growth.most(text.len()) <= most as f64 {
            return Ok(());
        }
        let mut text = text.to_owned();
        for insert in &self.inserts {
            let length = match insert {
                Insert::Before(prefix) => text.len() + prefix.len(),
                Insert::Instead { pattern, content } => {
                    let found = text.matches(pattern.as_str()).count();
                    text.len() - found * pattern.len() + found.saturating_mul(content.len())
                }
                Insert::Anywhere(bytes) => {
                    text.len().saturating_add((text.len() + 1).saturating_mul(*bytes))
                }
            };
            if length > most {
                return Err(format!(
                    "the normalizer makes {} MB or more of this text",
                    length >> 20
                ));
            }
            match insert {
                Insert::Before(prefix) => text.insert_str(0, prefix),
                Insert::Instead { pattern, content } => text = text.replace(pattern, content),
                // Only the length of the result is known.
                Insert::Anywhere(_) => {
                    text.extend(std::iter::repeat_n('\u{1}', length - text.len()))
                }
            }
        }
        Ok(())
    }
}

fn flatten(normalizer: &Value, inserts: &mut Vec<Insert>) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match normalizer["type"].as_str().unwrap_or_default() {
        "Sequence" => list(normalizer, "normalizers").for_each(|one| flatten(one, inserts)),
        "Prepend" => inserts.push(Insert::Before(text(&normalizer["prepend"]))),
        "Replace" => {
            let (pattern, content) =
                (text(&normalizer["pattern"]["String"]), text(&normalizer["content"]));
            inserts.push(match pattern.is_empty() {
                true => Insert::Anywhere(content.len()),
                false => Insert::Instead { pattern, content },
            });
        }
        _ => {}
    }
}

impl Parts {
    /// Refuses a file whose added tokens, which are normalized on loading, become too long.
    ///
    /// # Errors
    /// One sentence.
    pub(super) fn check_added(&self, normalizer: &Normalizer) -> Result<(), String> {
        self.added_tokens.iter().try_for_each(|token| normalizer.check(&token.content))
    }

    pub(super) fn normalizer(&self) -> Normalizer {
        let mut inserts = Vec::new();
        flatten(&self.normalizer, &mut inserts);
        Normalizer { growth: growth(&self.normalizer), inserts }
    }

    /// Whether every byte of a normalized text is part of a token: nothing is dropped, and unknown characters are not
    /// merged into one token.
    pub(super) fn covers_texts(&self, all_bytes: bool) -> bool {
        let strips = self.added_tokens.iter().any(|token| token.lstrip || token.rstrip);
        let known = all_bytes && (self.model.byte_fallback || alphabet(&self.pre_tokenizer));
        self.model.kind == "BPE" && !strips && known && keeps(&self.pre_tokenizer)
    }
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

/// The growth of a normalizer. Unicode normalization lengthens single characters a lot but texts hardly, so only
/// insertions count in full.
fn growth(normalizer: &Value) -> LengthBounds {
    let length = |value: &Value| value.as_str().map_or(0.0, |text| text.len() as f64);
    match normalizer["type"].as_str().unwrap_or_default() {
        "Sequence" => {
            list(normalizer, "normalizers").map(growth).fold(LengthBounds::NONE, LengthBounds::then)
        }
        "Prepend" => LengthBounds { more: length(&normalizer["prepend"]), ..LengthBounds::NONE },
        "Replace" => {
            let content = length(&normalizer["content"]);
            match length(&normalizer["pattern"]["String"]) {
                // A regular expression, or an empty pattern, may match between any two bytes.
                0.0 => LengthBounds { factor: 1.0 + content, more: content, least: 0.0 },
                pattern => {
                    LengthBounds::within((content / pattern).max(1.0), (content / pattern).min(1.0))
                }
            }
        }
        "ByteLevel" => LengthBounds::within(2.0, 1.0),
        "" => LengthBounds::NONE,
        // Three Hangul characters of nine bytes in total compose to one of three bytes.
        "NFC" => LengthBounds::within(3.0, 1.0 / 3.0),
        "NFD" => LengthBounds::within(3.0, 1.0),
        "Lowercase" => LengthBounds::within(2.0, 1.0 / 3.0),
        "BertNormalizer" => LengthBounds::within(4.0, 0.0),
        // NFKC, NFKD, precompiled tables, and normalizers that remove characters.
        _ => LengthBounds::within(4.0, 0.0),
    }
}

/// Whether texts are mapped to GPT-2's byte alphabet.
fn alphabet(pre_tokenizer: &Value) -> bool {
    match pre_tokenizer["type"].as_str() {
        Some("ByteLevel") => true,
        Some("Sequence") => list(pre_tokenizer, "pretokenizers").any(alphabet),
        _ => false,
    }
}

/// Whether a pre-tokenizer splits a text without dropping anything.
fn keeps(pre_tokenizer: &Value) -> bool {
    match pre_tokenizer["type"].as_str() {
        None | Some("ByteLevel" | "Metaspace" | "Digits" | "UnicodeScripts") => true,
        Some("Split" | "Punctuation") => pre_tokenizer["behavior"] != "Removed",
        Some("Sequence") => list(pre_tokenizer, "pretokenizers").all(keeps),
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn replace(from: &str, to: &str) -> Value {
        json!({ "type": "Replace", "pattern": { "String": from }, "content": to })
    }

    #[test]
    fn replacements_multiply() {
        let ten = replace("a", "aaaaaaaaaa");
        let all = json!({ "type": "Sequence", "normalizers": [ten, ten, { "type": "Prepend", "prepend": "__" }] });
        assert_eq!(growth(&all), LengthBounds { factor: 100.0, more: 2.0, least: 1.0 });
        assert_eq!(growth(&all).most(7), 702.0);
        assert_eq!(growth(&replace("ab", "c")), LengthBounds::within(1.0, 0.5));
        assert_eq!(
            growth(&replace("", "xyz")),
            LengthBounds { factor: 4.0, more: 3.0, least: 0.0 }
        );
        let regex = json!({ "type": "Replace", "pattern": { "Regex": "x*" }, "content": "ab" });
        assert_eq!(growth(&regex).factor, 3.0);
        assert_eq!(growth(&Value::Null), LengthBounds::NONE);
    }

    #[test]
    fn texts_lengthened_too_much_are_refused() {
        let normalizer = |steps: Value| {
            let parts = json!({ "normalizer": { "type": "Sequence", "normalizers": steps } });
            serde_json::from_value::<Parts>(parts).unwrap().normalizer()
        };
        let doubling: Vec<Value> = (0..40).map(|_| replace("a", "aa")).collect();
        let doubling = normalizer(json!(doubling));
        assert!(doubling.check("bcd").is_ok());
        let error = doubling.check("a").unwrap_err();
        assert_eq!(error, "the normalizer makes 16 MB or more of this text");
        let name = normalizer(json!([replace("\n", "<|newline|>")]));
        assert!(name.check(&"a line of words\n".repeat(100_000)).is_ok());
        assert!(name.check(&"\n".repeat(1_000_000)).is_err());
        let spaces = normalizer(json!([replace(" ", "▁")]));
        assert!(spaces.check(&" ".repeat(10_000_000)).is_ok());
        let regex = json!({ "type": "Replace", "pattern": { "Regex": "" }, "content": "x".repeat(1 << 20) });
        assert!(normalizer(json!([regex])).check("0123456789").is_err());
    }

    #[test]
    fn coverage_requires_no_dropped_or_unknown_bytes() {
        let parts = |value: Value| serde_json::from_value::<Parts>(value).unwrap();
        let bytes = json!({ "type": "ByteLevel" });
        let split = |behavior: &str| json!({ "type": "Split", "behavior": behavior });
        let model = json!({ "type": "BPE" });
        let covers = |pre: &Value, model: &Value| {
            parts(json!({ "pre_tokenizer": pre, "model": model })).covers_texts(true)
        };
        let both = |first: Value| json!({ "type": "Sequence", "pretokenizers": [first, bytes] });
        assert!(covers(&bytes, &model) && covers(&both(split("Isolated")), &model));
        assert!(!covers(&both(split("Removed")), &model));
        assert!(!covers(&Value::Null, &model) && !covers(&json!({ "type": "Whitespace" }), &model));
        assert!(covers(&Value::Null, &json!({ "type": "BPE", "byte_fallback": true })));
        assert!(!covers(&bytes, &json!({ "type": "WordPiece" })));
        let strips = json!({ "pre_tokenizer": bytes, "model": model, "added_tokens": [{ "content": "x", "lstrip": true }] });
        assert!(!parts(strips).covers_texts(true));
    }
}
