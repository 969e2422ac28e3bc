//! Translates the vocabulary of a GGUF file to a tokenizer.json, and its metadata to chat template settings.

use super::file::{Header, Value};
use crate::ModelError;
use crate::text::{ends_answers, tiktoken};
use serde_json::{Map, Value as Json, json};
use std::collections::HashMap;
use std::path::Path;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TEMPLATE: &str = "tokenizer.chat_template";

/// How a text is split before pairs are merged.
#[derive(Debug, Clone, Copy, PartialEq)]
enum SplitRule {
    Pattern(&'static str),
    /// Digits one by one, then the rest by this pattern.
    DigitsThen(&'static str),
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// The pre-tokenizer of a name in `tokenizer.ggml.pre`.
struct PreTokenizer {
    names: &'static [&'static str],
    cut: SplitRule,
    /// Whether a word that is a token is not merged from parts.
    whole_words: bool,
    /// Whether a text begins with BOS if the metadata do not say.
    begins: bool,
    /// Whether text is NFC-normalized first.
    composed: bool,
}

const fn pre(names: &'static [&'static str], cut: SplitRule) -> PreTokenizer {
    PreTokenizer { names, cut, whole_words: false, begins: false, composed: false }
}

/// llama.cpp's patterns in `llama-vocab.cpp`, spelled as in the tokenizers that it cites.
const PRES: &[PreTokenizer] = &[
    PreTokenizer {
        whole_words: true,
        begins: true,
        ..pre(
            &["llama-bpe", "llama3", "llama-v3", "falcon-h1", "falcon3", "lfm2"],
            SplitRule::Pattern(LLAMA3),
        )
    },
    pre(&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], SplitRule::Pattern(LLAMA3)),
    PreTokenizer {
        composed: true,
        ..pre(&["qwen2", "deepseek-r1-qwen"], SplitRule::Pattern(QWEN2))
    },
    PreTokenizer { composed: true, ..pre(&["qwen35"], SplitRule::Pattern(QWEN35)) },
    pre(&["gpt-4o", "llama4"], SplitRule::Pattern(O200K)),
    PreTokenizer {
        whole_words: true,
        begins: true,
        ..pre(&["tekken"], SplitRule::Pattern(TEKKEN))
    },
    PreTokenizer { whole_words: true, ..pre(&["kimi-k2"], SplitRule::Pattern(tiktoken::PATTERN)) },
    pre(&["gpt-2", "mpt", "olmo", "jais", "granite-docling"], SplitRule::Pattern(GPT2)),
    pre(&["refact", "starcoder", "command-r", "smollm", "codeshell"], SplitRule::DigitsThen(GPT2)),
];

/// Token types, by ggml's numbers.
const CONTROL: i128 = 3;
const USER_DEFINED: i128 = 4;
const UNUSED: i128 = 5;

/// The id of a special token.
fn special(header: &Header, name: &str) -> Option<u64> {
    header.whole(&format!("tokenizer.ggml.{name}_token_id"))
}

/// The tokens that end an answer: EOS, EOT and EOM.
pub(super) fn stop_ids(header: &Header) -> Vec<u32> {
    let ids = ["eos", "eot", "eom"].into_iter().filter_map(|name| special(header, name));
    let mut stop = Vec::new();
    for id in ids.filter_map(|id| u32::try_from(id).ok()) {
        if !stop.contains(&id) {
            stop.push(id);
        }
    }
    stop
}

/// The content of a tokenizer_config.json: chat templates, and the special tokens they use.
///
/// # Errors
/// [`ModelError`] of a file that cannot be read.
pub(crate) fn settings(path: &Path) -> Result<Json, ModelError> {
    let header = Header::read(path)?;
    let tokens = header.texts("tokenizer.ggml.tokens").unwrap_or_default();
    let mut settings = Map::new();
    for (name, key) in [("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")] {
        let token = special(&header, key).and_then(|id| tokens.get(usize::try_from(id).ok()?));
        if let Some(token) = token {
            settings.insert(format!("{name}_token"), json!(token));
        }
    }
    let names = header.texts("tokenizer.chat_templates").unwrap_or_default();
    let named = names.into_iter().filter_map(|name| {
        let text = header.text(&format!("{TEMPLATE}.{name}"))?;
        Some(json!({ "name": name, "template": text }))
    });
    let mut all: Vec<Json> = named.collect();
    if let Some(text) = header.text(TEMPLATE) {
        all.push(json!({ "name": "default", "template": text }));
    }
    if !all.is_empty() {
        settings.insert("chat_template".to_owned(), json!(all));
    }
    Ok(Json::Object(settings))
}

/// The tokenizer.json of a file.
///
/// # Errors
/// [`ModelError`] naming what is missing or unsupported.
pub(crate) fn tokenizer(path: &Path) -> Result<String, ModelError> {
    let header = Header::read(path)?;
    let wrong = |what: String| {
        ModelError::file(path, what).hinted("give token ids with --ids, or take the model's folder")
    };
    let Some(tokens) = header.texts("tokenizer.ggml.tokens") else {
        return Err(wrong("has no vocabulary".to_owned()));
    };
    let types = header.list("tokenizer.ggml.token_type").unwrap_or_default();
    let vocabulary = Vocabulary { header: &header, tokens, types };
    let made = match header.text(MODEL) {
        Some("gpt2") => vocabulary.pairs(),
        Some("llama") => vocabulary.pieces(),
        other => Err(format!(
            "has a vocabulary of `{}`; gpt2 and llama are read",
            other.unwrap_or("nothing that is named")
        )),
    };
    made.map(|made| made.to_string()).map_err(wrong)
}

struct Vocabulary<'a> {
    header: &'a Header,
    tokens: Vec<String>,
    types: Vec<Value>,
}

impl Vocabulary<'_> {
    fn kind(&self, id: usize) -> i128 {
        match self.types.get(id) {
            Some(Value::Whole(UNUSED)) => UNUSED,
            // Some files list the end-of-turn token as an ordinary token.
            _ if self.tokens.get(id).is_some_and(|token| ends_answers(token)) => CONTROL,
            Some(Value::Whole(kind)) => *kind,
            _ => 1,
        }
    }

    /// Token ids. Unused padding tokens are left out.
    fn ids(&self) -> HashMap<&str, usize> {
        let used = self.tokens.iter().enumerate().filter(|(id, _)| self.kind(*id) != UNUSED);
        used.map(|(id, token)| (token.as_str(), id)).collect()
    }

    /// Added tokens, which are matched before the text is split.
    fn added(&self) -> Vec<Json> {
        let added = self.tokens.iter().enumerate().filter_map(|(id, token)| {
            let kind = self.kind(id);
            matches!(kind, CONTROL | USER_DEFINED).then(|| {
                json!({
                    "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": kind == CONTROL,
                })
            })
        });
        added.collect()
    }

    /// The post-processor that adds BOS and EOS, if the model uses them.
    fn around(&self, begins: bool) -> Json {
        let added = |name: &str, otherwise: bool| {
            let adds = self.header.flag(&format!("tokenizer.ggml.add_{name}_token"));
            let id = special(self.header, name).filter(|_| adds.unwrap_or(otherwise))?;
            Some((id, self.tokens.get(usize::try_from(id).ok()?)?))
        };
        let (first, last) = (added("bos", begins), added("eos", false));
        let step = |of: &Option<(u64, &String)>| {
            of.map(|(_, token)| json!({ "SpecialToken": { "id": token, "type_id": 0 } }))
        };
        let text = |name: &str| json!({ "Sequence": { "id": name, "type_id": 0 } });
        let steps = |names: &[&str]| -> Vec<Json> {
            let texts = names.iter().map(|name| text(name));
            step(&first).into_iter().chain(texts).chain(step(&last)).collect()
        };
        let tokens = first.into_iter().chain(last).map(|(id, token)| {
            (token.clone(), json!({ "id": token, "ids": [id], "tokens": [token] }))
        });
        let tokens: Map<String, Json> = tokens.collect();
        match tokens.is_empty() {
            true => Json::Null,
            false => json!({
                "type": "TemplateProcessing", "single": steps(&["A"]), "pair": steps(&["A", "B"]),
                "special_tokens": tokens,
            }),
        }
    }

    /// BPE merges in priority order.
    fn pairs(&self) -> Result<Json, String> {
        let name = self.header.text(PRE).unwrap_or("nothing");
        let Some(pre) = PRES.iter().find(|pre| pre.names.contains(&name)) else {
            let read: Vec<&str> = PRES.iter().flat_map(|pre| pre.names).copied().collect();
            return Err(format!(
                "cuts texts as `{name}` ({PRE}); what is read is {}",
                read.join(", ")
            ));
        };
        let Some(merges) = self.header.texts("tokenizer.ggml.merges") else {
            return Err("has a vocabulary without merges".to_owned());
        };
        let pairs = merges.iter().map(|merge| {
            // The first half may be a space.
            let at = merge.char_indices().skip(1).find(|(_, c)| *c == ' ');
            let (left, right) = at.map(|(at, _)| merge.split_at(at))?;
            Some(json!([left, &right[1..]]))
        });
        let Some(pairs) = pairs.collect::<Option<Vec<_>>>() else {
            return Err("has a merge that is no pair".to_owned());
        };
        let split = |pattern: &str| json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
        let mut cuts = match pre.cut {
            SplitRule::Pattern(pattern) => vec![split(pattern)],
            SplitRule::DigitsThen(pattern) => {
                vec![json!({ "type": "Digits", "individual_digits": true }), split(pattern)]
            }
        };
        let bytes = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
        });
        cuts.push(bytes.clone());
        Ok(json!({
            "version": "1.0",
            "added_tokens": self.added(),
            "normalizer": if pre.composed { json!({ "type": "NFC" }) } else { Json::Null },
            "pre_tokenizer": { "type": "Sequence", "pretokenizers": cuts },
            "post_processor": self.around(pre.begins),
            "decoder": bytes,
            "model": {
                "type": "BPE", "vocab": self.ids(), "merges": pairs, "fuse_unk": false,
                "byte_fallback": false, "ignore_merges": pre.whole_words,
            },
        }))
    }

    /// The merges of a vocabulary with scores (SentencePiece): any two tokens whose concatenation is a token, best
    /// score first. Equal to transformers' conversion.
    fn pieces(&self) -> Result<Json, String> {
        let scores = self.header.list("tokenizer.ggml.scores").unwrap_or_default();
        if scores.len() != self.tokens.len() {
            return Err("has no score for each of its tokens".to_owned());
        }
        let score = |id: usize| match scores[id] {
            Value::Number(score) => score,
            _ => f64::NEG_INFINITY,
        };
        let ids = self.ids();
        let mut merges = Vec::new();
        for (id, piece) in self.tokens.iter().enumerate().filter(|(id, _)| self.kind(*id) == 1) {
            let halves = piece.char_indices().skip(1).map(|(at, _)| piece.split_at(at));
            let known = |(left, right): (&str, &str)| Some((*ids.get(left)?, *ids.get(right)?));
            let mut own: Vec<(usize, usize)> = halves.filter_map(known).collect();
            own.sort_unstable();
            merges.extend(own.into_iter().map(|pair| (score(id), pair)));
        }
        merges.sort_by(|a, b| b.0.total_cmp(&a.0));
        let merges = merges
            .iter()
            .map(|(_, (left, right))| json!([self.tokens[*left], self.tokens[*right]]));
        let merges: Vec<Json> = merges.collect();
        let spaced = self.header.flag("tokenizer.ggml.add_space_prefix").unwrap_or(true);
        let mut normalizers =
            vec![json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" })];
        if spaced {
            normalizers.insert(0, json!({ "type": "Prepend", "prepend": "▁" }));
        }
        let mut decoders = vec![
            json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " }),
            json!({ "type": "ByteFallback" }),
            json!({ "type": "Fuse" }),
        ];
        if spaced {
            decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
        }
        let unknown = special(self.header, "unknown").unwrap_or(0);
        let unknown = usize::try_from(unknown).ok().and_then(|id| self.tokens.get(id));
        Ok(json!({
            "version": "1.0",
            "added_tokens": self.added(),
            "normalizer": { "type": "Sequence", "normalizers": normalizers },
            "pre_tokenizer": null,
            "post_processor": self.around(true),
            "decoder": { "type": "Sequence", "decoders": decoders },
            "model": {
                "type": "BPE", "vocab": ids, "merges": merges, "unk_token": unknown, "fuse_unk": true,
                "byte_fallback": true, "ignore_merges": false,
            },
        }))
    }
}

#[cfg(test)]
mod tests;
