use super::super::file::tests::file;
use super::*;
use crate::random::mix;
use crate::{ChatMessage, ChatTemplate, Conversation, Tokenizer, stop_ids};
use std::collections::BTreeMap;

/// Texts that exercise every split rule, and random ones.
fn texts() -> Vec<String> {
    let written = [
        "",
        " ",
        "the very thing",
        "the thing",
        "I'm sure you'LL see they've 1234567 things",
        "  two  spaces\n\n\nand\tlines \r\n ",
        "日本語のテキスト、漢字",
        "Ünïcödé é e\u{301} ß",
        "🦀🦀 crabs",
        "<|end|>the<|end|> <|pad|>",
        "x=3.14; y[12]{}/*..*/",
        "\u{a0}\u{2003}spaces",
        "a\0b\u{7f}",
    ];
    const LETTERS: &[char] = &[
        'a', 'B', 't', 'h', 'e', ' ', ' ', '\n', '\'', 's', '1', '2', '.', '-', 'é', '語', '🦀',
        '\u{301}', '▁',
    ];
    let drawn = (0..200u64).map(|seed| {
        let letter = |at: u64| LETTERS[mix(seed * 64 + at) as usize % LETTERS.len()];
        (0..seed % 40).map(letter).collect()
    });
    written.into_iter().map(str::to_owned).chain(drawn).collect()
}

/// A vocabulary of all bytes and some merges, followed by special tokens.
fn published(pre_tokenizer: &Json, more: &Json) -> Json {
    let alphabet = tiktoken::byte_alphabet();
    let mut vocabulary: Map<String, Json> =
        alphabet.iter().enumerate().map(|(id, c)| (c.to_string(), json!(id))).collect();
    let merges = [
        "t h", "th e", "Ġ the", "Ġ t", "i n", "in g", "Ġ Ġ", "Ċ Ċ", "1 2", "12 3", "' s", "l l",
        "Ã ©", "Ġ I",
    ];
    for merge in merges {
        vocabulary.insert(merge.replace(' ', ""), json!(vocabulary.len()));
    }
    // A token that no merge produces.
    vocabulary.insert("Ġvery".to_owned(), json!(vocabulary.len()));
    let special = |at: usize, content: &str, special: bool| {
        json!({
            "id": vocabulary.len() + at, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": special,
        })
    };
    let added =
        [special(0, "<|begin|>", true), special(1, "<|end|>", true), special(2, "<|pad|>", false)];
    let mut made = json!({
        "version": "1.0", "added_tokens": added, "normalizer": null, "pre_tokenizer": pre_tokenizer,
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": { "type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": false },
    });
    for (key, value) in more.as_object().unwrap() {
        match key.as_str() {
            "ignore_merges" => made["model"][key] = value.clone(),
            _ => made[key] = value.clone(),
        }
    }
    made
}

/// The file that llama.cpp's converter makes of a tokenizer.json, with unused ids in its vocabulary.
fn converted(tokenizer: &Json, pre: &str) -> Vec<u8> {
    let vocabulary = tokenizer["model"]["vocab"].as_object().unwrap();
    let mut tokens: BTreeMap<u64, (&str, u32)> =
        vocabulary.iter().map(|(token, id)| (id.as_u64().unwrap(), (token.as_str(), 1))).collect();
    for added in tokenizer["added_tokens"].as_array().unwrap() {
        let kind = if added["special"] == true { 3 } else { 4 };
        tokens.insert(added["id"].as_u64().unwrap(), (added["content"].as_str().unwrap(), kind));
    }
    let filling = ["[PAD1]", "[PAD2]"].map(|token| (token, 5));
    let all: Vec<(&str, u32)> = tokens.into_values().chain(filling).collect();
    let merges = tokenizer["model"]["merges"].as_array().unwrap().iter().map(|merge| match merge {
        Json::Array(pair) => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
        merge => merge.as_str().unwrap().to_owned(),
    });
    let end = all.len() - 4;
    file(
        &[
            (MODEL, json!("gpt2")),
            (PRE, json!(pre)),
            ("tokenizer.ggml.tokens", all.iter().map(|(token, _)| *token).collect()),
            ("tokenizer.ggml.token_type", all.iter().map(|(_, kind)| *kind).collect()),
            ("tokenizer.ggml.merges", merges.collect()),
            ("tokenizer.ggml.bos_token_id", json!(end - 1)),
            ("tokenizer.ggml.eos_token_id", json!(end)),
            ("tokenizer.ggml.eot_token_id", json!(end)),
            ("tokenizer.ggml.padding_token_id", json!(end + 1)),
            (
                TEMPLATE,
                json!(
                    "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
                ),
            ),
        ],
        &[],
    )
}

fn check(folder: &Path, pre: &str) {
    let json: Json =
        serde_json::from_str(&std::fs::read_to_string(folder.join("tokenizer.json")).unwrap())
            .unwrap();
    let path = folder.join("m.gguf");
    std::fs::write(&path, converted(&json, pre)).unwrap();
    let (want, got) = (Tokenizer::read(folder).unwrap(), Tokenizer::read(&path).unwrap());
    assert_eq!(got.vocabulary(), want.vocabulary(), "{pre}");
    let mut joined = 0;
    for text in texts() {
        for special in [false, true] {
            let [want, got] = [&want, &got].map(|of| of.encode_with(&text, special).unwrap());
            assert_eq!(got, want, "{pre}: {text:?}");
        }
        let ids = want.encode(&text).unwrap();
        joined += usize::from(ids.len() < text.len());
        for special in [false, true] {
            let [want, got] = [&want, &got].map(|of| of.decode_with(&ids, special).unwrap());
            assert_eq!(got, want, "{pre}: {text:?}");
        }
        for id in ids {
            assert_eq!(
                (got.bytes(id), got.is_special(id)),
                (want.bytes(id), want.is_special(id)),
                "{pre} {id}"
            );
        }
    }
    assert!(joined > 50, "{pre}: hardly a pair was joined");
}

fn split(pattern: &str) -> Json {
    json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false })
}

fn bytes(regex: bool) -> Json {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex })
}

/// Uses the pre-tokenizers of published tokenizer.json files.
#[test]
fn token_ids_match_the_original_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let both =
        |first: Json, second: Json| json!({ "type": "Sequence", "pretokenizers": [first, second] });
    let begins = json!({
        "type": "TemplateProcessing",
        "single": [{ "SpecialToken": { "id": "<|begin|>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
        "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
        "special_tokens": { "<|begin|>": { "id": "<|begin|>", "ids": [271], "tokens": ["<|begin|>"] } },
    });
    let llama3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let qwen2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let digits = json!({ "type": "Digits", "individual_digits": true });
    for (pre, cut, more) in [
        (
            "llama-bpe",
            both(split(llama3), bytes(false)),
            json!({ "ignore_merges": true, "post_processor": begins }),
        ),
        ("dbrx", both(split(llama3), bytes(false)), json!({})),
        ("qwen2", both(split(qwen2), bytes(false)), json!({ "normalizer": { "type": "NFC" } })),
        ("gpt-2", bytes(true), json!({})),
        ("refact", both(digits.clone(), bytes(true)), json!({})),
        ("smollm", both(digits, bytes(true)), json!({})),
    ] {
        let text = published(&cut, &more).to_string();
        std::fs::write(folder.path().join("tokenizer.json"), text).unwrap();
        check(folder.path(), pre);
    }
    // Kimi's converted file.
    let made = tiktoken::convert(&tiktoken::bytes_alone(), None).unwrap();
    let mut made: Json = made;
    made["added_tokens"].as_array_mut().unwrap().truncate(3);
    std::fs::write(folder.path().join("tokenizer.json"), made.to_string()).unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, converted(&made, "kimi-k2")).unwrap();
    let (want, got) = (Tokenizer::read(folder.path()).unwrap(), Tokenizer::read(&path).unwrap());
    for text in texts() {
        for special in [false, true] {
            let [want, got] = [&want, &got].map(|of| of.encode_with(&text, special).unwrap());
            assert_eq!(got, want, "{text:?}");
        }
    }
}

#[test]
fn template_and_stop_ids_are_read_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let json = published(&bytes(true), &json!({}));
    std::fs::write(&path, converted(&json, "gpt-2")).unwrap();
    assert_eq!(stop_ids(&path, None).unwrap(), [272]);
    // An end-of-turn token that is only known by its name.
    let mut named: Json = json.clone();
    named["model"]["vocab"]["<|im_end|>"] = json!(274);
    named["added_tokens"][1]["content"] = json!("<|other|>");
    let vocabulary = named["model"]["vocab"].as_object().unwrap().len();
    assert_eq!(vocabulary, 272);
    std::fs::write(&path, converted(&named, "gpt-2")).unwrap();
    let tokenizer = Tokenizer::read(&path).unwrap();
    let end = tokenizer.id("<|im_end|>").unwrap();
    assert!(tokenizer.is_special(end));
    assert_eq!(tokenizer.encode("the<|im_end|>").unwrap().last(), Some(&end));
    assert!(stop_ids(&path, Some(&tokenizer)).unwrap().contains(&end));
    std::fs::write(&path, converted(&json, "gpt-2")).unwrap();
    let template = ChatTemplate::read(&path).unwrap();
    let asked = Conversation::to_answer(vec![ChatMessage::new("user", "what?")]);
    assert_eq!(template.render(&asked).unwrap(), "<|begin|>what?<|end|>");
    let refused = |pairs: &[(&str, Json)], words: &str| {
        std::fs::write(&path, file(pairs, &[])).unwrap();
        let error = Tokenizer::read(&path).err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(&[], "has no vocabulary");
    let tokens = ("tokenizer.ggml.tokens", json!(["a"]));
    refused(&[tokens.clone(), (MODEL, json!("bert"))], "has a vocabulary of `bert`");
    refused(
        &[tokens.clone(), (MODEL, json!("gpt2")), (PRE, json!("bloom"))],
        "cuts texts as `bloom`",
    );
    refused(
        &[tokens.clone(), (MODEL, json!("gpt2")), (PRE, json!("gpt-2"))],
        "vocabulary without merges",
    );
    refused(&[tokens, (MODEL, json!("llama"))], "has no score");
    assert!(ChatTemplate::read(&path).unwrap_err().to_string().contains("no chat template"));
}

/// SentencePiece's algorithm: of all adjacent tokens whose concatenation is a token, merge the best, the first of
/// equals, until there are none.
fn joined(pieces: &[(&str, f64)], text: &str) -> Vec<u32> {
    let id = |piece: &str| pieces.iter().position(|(of, _)| *of == piece);
    let text =
        if text.is_empty() { String::new() } else { format!("▁{}", text.replace(' ', "▁")) };
    let mut parts: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let mut best: Option<(f64, usize)> = None;
        for at in 1..parts.len() {
            let whole = format!("{}{}", parts[at - 1], parts[at]);
            // Byte tokens and special tokens are never results of merges.
            let score = id(&whole).filter(|id| *id >= 259).map(|id| pieces[id].1);
            if let Some(score) = score.filter(|score| best.is_none_or(|(of, _)| *score > of)) {
                best = Some((score, at - 1));
            }
        }
        let Some((_, at)) = best else { break };
        let next = parts.remove(at + 1);
        parts[at] += &next;
    }
    let ids = |part: &String| match id(part) {
        Some(id) => vec![id as u32],
        None => part.bytes().map(|byte| 3 + u32::from(byte)).collect(),
    };
    parts.iter().flat_map(ids).collect()
}

#[test]
fn merges_match_sentencepiece() {
    let bytes: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    let mut pieces: Vec<(&str, f64)> = vec![("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)];
    pieces.extend(bytes.iter().map(|byte| (byte.as_str(), 0.0)));
    let words = ["th", "he", "the", "▁t", "▁the", "in", "ing", "▁▁", "12", "▁th", "e1", "se", "▁1"];
    // In another order than that of their scores.
    pieces.extend(words.iter().enumerate().rev().map(|(at, word)| (*word, -(at as f64))));
    let letters = ["▁", "a", "B", "t", "h", "e", "i", "n", "g", "1", "2", ".", "s", "'", "é", "語"];
    pieces.extend(letters.iter().enumerate().map(|(at, letter)| (*letter, -100.0 - at as f64)));
    let kind = |at: usize| match at {
        0 => 2,
        1 | 2 => 3,
        3..259 => 6,
        _ => 1,
    };
    let made = file(
        &[
            (MODEL, json!("llama")),
            ("tokenizer.ggml.tokens", pieces.iter().map(|(piece, _)| *piece).collect()),
            ("tokenizer.ggml.scores", pieces.iter().map(|(_, score)| *score).collect()),
            ("tokenizer.ggml.token_type", (0..pieces.len()).map(kind).collect()),
            ("tokenizer.ggml.bos_token_id", json!(1)),
            ("tokenizer.ggml.eos_token_id", json!(2)),
            ("tokenizer.ggml.unknown_token_id", json!(0)),
        ],
        &[],
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, made).unwrap();
    let tokenizer = Tokenizer::read(&path).unwrap();
    for text in texts() {
        // The special token of this test occurs in texts as ordinary characters.
        let want = joined(&pieces, &text);
        assert_eq!(tokenizer.encode(&text).unwrap(), want, "{text:?}");
        assert_eq!(
            tokenizer.encode_with(&text, true).unwrap(),
            [&[1], &want[..]].concat(),
            "{text:?}"
        );
        if !text.contains('▁') {
            assert_eq!(tokenizer.decode(&want).unwrap(), text);
        }
    }
}
