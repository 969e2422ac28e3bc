//! Models that generate a chosen text: a test of the fixture, in every command that prints text.

use crate::client::Server;
use crate::support::{command, json as run, scripted};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use tempfile::{TempDir, tempdir};

const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

#[test]
fn scripted_model_generates_its_script() {
    let folder = tempdir().unwrap();
    let text = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, 1, 1, 11]}}\n</tool_call> ünï 🚀🚀";
    scripted::say(&folder.path().join("m"), text, &["<|im_end|>", "<|im_start|>"]);
    std::fs::write(folder.path().join("m/chat_template.jinja"), TEMPLATE).unwrap();
    for prompt in ["hi", "a longer text with <tool_call> in it"] {
        let ran = run(folder.path(), &["run", "m", "-p", prompt, "-n", "200"], 0);
        assert_eq!(ran["answers"][0]["text"], text, "{prompt}");
        assert_eq!(ran["answers"][0]["ended"], "stop id");
    }
    let server = Server::start(folder.path(), &[]);
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }], "temperature": 0 });
    let answer = server.ask("/v1/chat/completions", &body);
    assert_eq!(answer["choices"][0]["message"]["content"], text);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

/// Llama 2's tokenizer, reduced to a few words, all bytes and some characters.
fn llama2() -> (Value, Vec<String>) {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    let words =
        ["▁the", "▁cat", "▁sat", "▁on", ".", "▁mat", "▁", "{", "}", "\"", ":", "é", "a", "▁{"];
    tokens.extend(words.map(str::to_owned));
    let ids: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    let special = (0..3).map(|id| {
        json!({
            "id": id, "content": tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    });
    let replace = |from: &str, to: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
    let tokenizer = json!({
        "version": "1.0", "added_tokens": special.collect::<Vec<_>>(),
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "▁" }, replace(" ", "▁"),
        ] },
        "pre_tokenizer": null, "post_processor": null,
        "decoder": { "type": "Sequence", "decoders": [
            replace("▁", " "), { "type": "ByteFallback" }, { "type": "Fuse" },
            { "type": "Strip", "content": " ", "start": 1, "stop": 0 },
        ] },
        "model": {
            "type": "BPE", "vocab": ids, "merges": [], "unk_token": "<unk>", "fuse_unk": true,
            "byte_fallback": true, "ignore_merges": false,
        },
    });
    (tokenizer, tokens)
}

/// A model in `m` that generates these tokens of [`llama2`], bytes as `<0x..>`, and then the end token.
fn saying(words: &[&str]) -> TempDir {
    let folder = tempdir().unwrap();
    let (tokenizer, tokens) = llama2();
    let id = |word: &&str| tokens.iter().position(|token| token == word).unwrap() as u32;
    let script: Vec<u32> = words.iter().chain(&["</s>"]).map(id).collect();
    let path = folder.path().join("m");
    scripted::write(&path, &tokenizer, &script, Some(2));
    std::fs::write(
        path.join("chat_template.jinja"),
        "{% for m in messages %}{{ m.content }}:{% endfor %}",
    )
    .unwrap();
    folder
}

const SENTENCE: [&str; 10] =
    ["▁the", "▁cat", "▁sat", "▁on", ".", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "▁mat"];

/// The last answer of `firstlight chat`.
fn chat(folder: &Path, arguments: &[&str]) -> Value {
    let mut command = command(folder, &[&["chat", "m", "--json"], arguments].concat());
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"a\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn sentencepiece_answers_keep_spaces() {
    let folder = saying(&SENTENCE);
    let here = folder.path();
    let text = "the cat sat on.😀 mat";
    assert_eq!(run(here, &["run", "m", "-p", "a"], 0)["answers"][0]["text"], text);
    assert_eq!(chat(here, &[])["text"], text);
    for stop in ["cat sat", " sat", "😀"] {
        let want = &text[..text.find(stop).unwrap()];
        let ran = run(here, &["run", "m", "-p", "a", "--stop", stop], 0);
        assert_eq!(ran["answers"][0]["text"], want);
        assert_eq!(chat(here, &["--stop", stop])["text"], want);
    }
    let server = Server::start(here, &[]);
    let body = json!({ "prompt": "a", "temperature": 0, "max_tokens": 40, "logprobs": 2 });
    let choice = &server.ask("/v1/completions", &body)["choices"][0];
    assert_eq!(choice["text"], text);
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"][0], "the");
    assert_eq!(logprobs["tokens"][1], " cat");
    assert_eq!(logprobs["tokens"][5], "bytes:\\xf0");
    let offsets = json!([0, 3, 7, 11, 14, 15, 15, 15, 15, 16]);
    assert_eq!(logprobs["text_offset"], offsets);
    let parts = |path: &str, body: &Value, at: &str| -> Vec<String> {
        let events = server.stream(path, body);
        let text = |event: &Value| event.pointer(at).and_then(Value::as_str).map(str::to_owned);
        events.iter().filter_map(text).filter(|text| !text.is_empty()).collect()
    };
    let body = json!({ "prompt": "a", "temperature": 0, "max_tokens": 40, "stream": true });
    let streamed = parts("/v1/completions", &body, "/choices/0/text");
    assert_eq!(streamed.concat(), text);
    let message = json!([{ "role": "user", "content": "a" }]);
    let mut body = json!({ "messages": message, "temperature": 0, "stream": true });
    assert_eq!(parts("/v1/chat/completions", &body, "/choices/0/delta/content").concat(), text);
    body["stop"] = json!("cat sat");
    assert_eq!(parts("/v1/chat/completions", &body, "/choices/0/delta/content").concat(), "the ");
}

#[test]
fn sentencepiece_tokens_follow_constraints() {
    let folder = saying(&SENTENCE[..3]);
    let server = Server::start(folder.path(), &[]);
    let ask = |form: Value| {
        let mut body = json!({
            "messages": [{ "role": "user", "content": "a" }], "temperature": 0, "max_tokens": 60,
        });
        body.as_object_mut().unwrap().extend(form.as_object().unwrap().clone());
        let answer = server.ask("/v1/chat/completions", &body);
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    let choices = |texts: &[&str]| json!({ "structured_outputs": { "choice": texts } });
    assert_eq!(ask(choices(&["the cat sat", "the mat"])), "the cat sat");
    assert_eq!(ask(choices(&["the mat"])), "the mat");
    // The decoder does not remove the leading space of an answer.
    assert_eq!(ask(choices(&[" the"])), " the");
    assert_eq!(ask(choices(&["  mat"])), "  mat");
    let schema = json!({ "const": "é cat" });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    assert_eq!(ask(json!({ "response_format": format })).trim(), "\"é cat\"");
}

#[test]
fn characters_split_over_tokens_are_whole() {
    // Three emoji over seven tokens, of which four end inside the next character.
    let folder = tempdir().unwrap();
    let mut tokenizer = scripted::byte_tokenizer(&["<|im_end|>"]);
    let text = "😀🎉🚀 done";
    let spelled: Vec<char> = {
        let vocabulary = tokenizer["model"]["vocab"].as_object().unwrap();
        let letter = |byte: u8| {
            let (name, _) = vocabulary.iter().find(|(_, id)| **id == json!(byte)).unwrap();
            name.chars().next().unwrap()
        };
        text.bytes().map(letter).collect()
    };
    let cuts = [2, 3, 5, 7, 9, 11, 12, spelled.len()];
    let mut script: Vec<u32> = Vec::new();
    for (at, window) in [0].iter().chain(&cuts).copied().collect::<Vec<_>>().windows(2).enumerate()
    {
        let token: String = spelled[window[0]..window[1]].iter().collect();
        let id = 300 + at as u32;
        let ids = tokenizer["model"]["vocab"].as_object_mut().unwrap();
        script.push(match ids.get(&token) {
            Some(id) => id.as_u64().unwrap() as u32,
            None => {
                ids.insert(token, json!(id));
                id
            }
        });
    }
    script.push(256);
    scripted::write(&folder.path().join("m"), &tokenizer, &script, Some(256));
    assert_eq!(run(folder.path(), &["run", "m", "-p", "a"], 0)["answers"][0]["text"], text);
}
