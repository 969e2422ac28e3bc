use crate::Tokenizer;
use crate::random::mix;
use serde_json::{Value, json};

/// A tokenizer.json of these tokens; those in `<|` and `|>` are special.
fn tokenizer(tokens: &[&str], decoder: &Value) -> (tempfile::TempDir, Tokenizer) {
    let vocabulary: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), json!(id))).collect();
    let special = |(id, token): (usize, &&str)| {
        json!({
            "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": token.starts_with("<|"),
        })
    };
    let added = tokens
        .iter()
        .enumerate()
        .filter(|(_, token)| token.starts_with("<|") || **token == "<add>");
    let made = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": added.map(special).collect::<Vec<_>>(),
        "pre_tokenizer": null, "post_processor": null, "decoder": decoder,
        "model": { "type": "BPE", "vocab": vocabulary, "merges": [] },
    });
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), made.to_string()).unwrap();
    let tokenizer = Tokenizer::read(folder.path()).unwrap();
    (folder, tokenizer)
}

/// The streamed text, and what was shown before the end.
fn streamed(tokenizer: &Tokenizer, ids: &[u32], special: bool) -> (String, String) {
    let mut stream = tokenizer.stream();
    let mut shown = String::new();
    for id in ids {
        shown += &if special { stream.push_special(*id) } else { stream.push(*id) }.unwrap();
    }
    (shown.clone(), shown + &stream.finish().unwrap())
}

fn metaspace(scheme: &str) -> Value {
    json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true })
}

fn replace(pattern: &str, content: &str) -> Value {
    json!({ "type": "Replace", "pattern": { "String": pattern }, "content": content })
}

fn regex(pattern: &str, content: &str) -> Value {
    json!({ "type": "Replace", "pattern": { "Regex": pattern }, "content": content })
}

fn strip(content: &str, start: usize, stop: usize) -> Value {
    json!({ "type": "Strip", "content": content, "start": start, "stop": stop })
}

fn sequence(decoders: &[Value]) -> Value {
    json!({ "type": "Sequence", "decoders": decoders })
}

fn bytes() -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true })
}

/// Every decoder of tokenizer.json, alone and in published sequences, and some artificial ones.
fn zoo() -> Vec<Value> {
    let fallback = json!({ "type": "ByteFallback" });
    let fuse = json!({ "type": "Fuse" });
    let word_piece =
        |cleanup: bool| json!({ "type": "WordPiece", "prefix": "##", "cleanup": cleanup });
    let suffix = json!({ "type": "BPEDecoder", "suffix": "</w>" });
    let ctc = |cleanup: bool| json!({ "type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": cleanup });
    let spaces = replace("▁", " ");
    vec![
        Value::Null,
        bytes(),
        metaspace("always"),
        metaspace("first"),
        metaspace("never"),
        word_piece(true),
        word_piece(false),
        suffix.clone(),
        ctc(true),
        ctc(false),
        fallback.clone(),
        fuse.clone(),
        spaces.clone(),
        regex("[a-c▁]+", "."),
        strip("▁", 1, 0),
        sequence(&[]),
        // Llama 2, Mistral, Phi 3.
        sequence(&[spaces.clone(), fallback.clone(), fuse.clone(), strip(" ", 1, 0)]),
        // Gemma.
        sequence(&[spaces.clone(), fallback.clone(), fuse.clone()]),
        sequence(&[fallback.clone(), metaspace("always")]),
        sequence(&[fallback.clone(), fuse.clone(), metaspace("first")]),
        sequence(&[fallback.clone(), fuse.clone(), metaspace("never"), strip(" ", 2, 0)]),
        sequence(&[bytes(), strip(" ", 1, 0), replace("the ", "THE_")]),
        sequence(&[bytes(), replace("aab", "x"), replace("xx", "y")]),
        sequence(&[fuse.clone(), regex("a+", "A"), strip("A", 1, 0)]),
        sequence(&[fuse.clone(), word_piece(true), fuse.clone()]),
        sequence(&[suffix.clone(), strip(" ", 1, 0), fuse.clone(), spaces.clone()]),
        sequence(&[ctc(true), metaspace("always")]),
        sequence(&[
            word_piece(false),
            fallback.clone(),
            sequence(&[fuse.clone(), replace("a b", "")]),
        ]),
        sequence(&[fuse.clone(), suffix.clone()]),
        sequence(&[fuse.clone(), replace("", "-")]),
        sequence(&[fuse, bytes()]),
        sequence(&[strip("a", 2, 0), spaces, fallback]),
    ]
}

const TOKENS: &[&str] = &[
    "▁the",
    "▁",
    "▁▁",
    "the",
    "▁cat</w>",
    "cat</w>",
    "</w>",
    "##s",
    "s",
    ".",
    " .",
    "n't",
    "a",
    "aa",
    "aab",
    "b",
    "x",
    " ",
    "  ",
    "Ġ",
    "Ġa",
    "Ċ",
    "ð",
    "Ł",
    "ĺ",
    "Ģ",
    "ðŁĺ",
    "Ã",
    "©",
    "é",
    "😀",
    "<0x41>",
    "<0x20>",
    "<0xF0>",
    "<0x9F>",
    "<0x98>",
    "<0x80>",
    "<0xC3>",
    "<0xA9>",
    "<0xzz>",
    "<pad>",
    "|",
    "<add>",
    "<|end|>",
    "<|x▁y|>",
    "'",
    " do not",
];

#[test]
fn streamed_text_equals_decoding_the_whole_list() {
    for decoder in zoo() {
        let (_folder, tokenizer) = tokenizer(TOKENS, &decoder);
        for seed in 0..400u64 {
            let draw = |at: u64| mix(seed * 4096 + at);
            let length = draw(0) % 24;
            // Some lists repeat a few tokens, so that related tokens are adjacent.
            let (from, count) = match draw(1) % 3 {
                0 => (31, 8),
                1 => (22, 7),
                _ => (0, TOKENS.len() as u64),
            };
            let ids: Vec<u32> =
                (0..length).map(|at| from + (draw(at + 2) % count) as u32).collect();
            for special in [false, true] {
                let shown: Vec<u32> = match special {
                    true => ids.clone(),
                    false => ids.iter().copied().filter(|id| !tokenizer.is_special(*id)).collect(),
                };
                // BPEDecoder of `tokenizers` fails on an empty list.
                if shown.is_empty() {
                    streamed(&tokenizer, &ids, special);
                    continue;
                }
                let want = tokenizer.inner().decode(&ids, !special).unwrap();
                let (shown, all) = streamed(&tokenizer, &ids, special);
                assert_eq!(all, want, "{decoder} {ids:?}");
                assert!(want.starts_with(&shown));
                assert_eq!(tokenizer.decode_with(&ids, special).unwrap(), want);
            }
        }
    }
}

#[test]
fn text_is_not_buffered_longer_than_needed() {
    let id = |token: &str| TOKENS.iter().position(|of| *of == token).unwrap() as u32;
    for (decoder, tokens, want) in [
        (
            sequence(&[
                replace("▁", " "),
                json!({ "type": "ByteFallback" }),
                json!({ "type": "Fuse" }),
                strip(" ", 1, 0),
            ]),
            &["▁the", "▁cat</w>", "<0xC3>", "<0xA9>", "s", "<0x41>"][..],
            "the cat</w>és",
        ),
        (bytes(), &["the", "Ġa", "ðŁĺ", "Ģ", "ðŁĺ"], "the a😀"),
        (metaspace("first"), &["▁the", "▁cat</w>"], "the cat</w>"),
        (Value::Null, &["the", "a"], "the a"),
        (sequence(&[bytes(), replace("aab", "x")]), &["aab", "aa", "a"], "xa"),
        (strip(" ", 0, 1), &["a", "  ", "b", "  "], "a b "),
    ] {
        let (_folder, tokenizer) = tokenizer(TOKENS, &decoder);
        let ids: Vec<u32> = tokens.iter().map(|token| id(token)).collect();
        assert_eq!(streamed(&tokenizer, &ids, false).0, want, "{decoder}");
    }
}

/// For first tokens and later ones.
#[test]
fn token_bytes_concatenate_to_the_text() {
    for decoder in zoo() {
        let (_folder, tokenizer) = tokenizer(TOKENS, &decoder);
        let text = decoder.to_string();
        // Here a token's text depends on its neighbors or on the whole text.
        let depends = ["CTC", "BPEDecoder", "Regex", "aab", "a b", "the ", r#""String":"""#];
        if depends.iter().any(|word| text.contains(word))
            || text.contains(r#"Fuse"},{"cleanup":true"#)
        {
            continue;
        }
        // A single byte of a character is U+FFFD in a text, and the byte for a grammar.
        let whole = |token: &&str| {
            !token.starts_with("<0x") && !token.chars().any(|c| "ðŁĺĢÃ©é".contains(c))
        };
        let ids: Vec<u32> =
            (0..TOKENS.len()).filter(|id| whole(&TOKENS[*id])).map(|id| id as u32).collect();
        let begin = TOKENS.iter().position(|token| *token == "x").unwrap() as u32;
        for id in ids {
            if tokenizer.is_special(id) {
                continue;
            }
            let first = tokenizer.inner().decode(&[id], true).unwrap();
            assert_eq!(tokenizer.first_bytes(id).unwrap(), first.as_bytes(), "{decoder} {id}");
            let [before, with] = [&[begin][..], &[begin, id]]
                .map(|ids| tokenizer.inner().decode(ids, true).unwrap());
            let more = with.strip_prefix(&before).unwrap();
            assert_eq!(tokenizer.bytes(id).unwrap(), more.as_bytes(), "{decoder} {id}");
        }
    }
    let fallback = sequence(&[
        replace("▁", " "),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ]);
    let (_folder, tokenizer) = tokenizer(TOKENS, &fallback);
    assert_eq!(tokenizer.bytes(33).unwrap(), [0xf0]);
    let (_folder, tokenizer) = self::tokenizer(TOKENS, &bytes());
    assert_eq!(tokenizer.bytes(26).unwrap(), [0xf0, 0x9f, 0x98]);
}
