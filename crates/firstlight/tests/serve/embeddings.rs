//! `/v1/embeddings`. The output head maps the hidden states of embeddings to the logits of `model logits`: the last token's hidden
//! state to its logits, and the mean hidden state to the mean of the logits.

use super::client::{Server, wait};
use super::model::model;
use super::support::expect;
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;

const PLAIN_MEAN: &str = r#"{"pooling_type": "MEAN", "normalize": false}"#;
const PLAIN_LAST: &str = r#"{"pooling_type": "LAST", "normalize": false}"#;

fn embed(server: &Server, body: &Value) -> Value {
    let answer = server.post("/v1/embeddings", body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

fn vector(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn refused(server: &Server, body: &Value, code: &str, words: &str) {
    let answer = server.post("/v1/embeddings", body);
    assert_eq!(answer.status, 400, "{}", answer.body);
    let error = &answer.json()["error"];
    assert_eq!(error["code"], code, "{error}");
    assert!(error["message"].as_str().unwrap().contains(words), "{error}");
}

/// A tensor of a file, in float32.
fn tensor(path: &Path, name: &str) -> (Vec<usize>, Vec<f32>) {
    let bytes = std::fs::read(path).unwrap();
    let header = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    let json: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let info = &json[name];
    let number = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    let shape = info["shape"].as_array().unwrap().iter().map(number).collect();
    let ends = [0, 1].map(|end| 8 + header + number(&info["data_offsets"][end]));
    let data = &bytes[ends[0]..ends[1]];
    let values = match info["dtype"].as_str().unwrap() {
        "F32" => data.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
        "BF16" => {
            let wide = |x: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*x)) << 16);
            data.as_chunks().0.iter().map(wide).collect()
        }
        other => panic!("{other}"),
    };
    (shape, values)
}

/// The logits of each token.
fn logits(folder: &TempDir, ids: &[u32]) -> Vec<Vec<f32>> {
    let list = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let line = ["model", "logits", "m", "--ids", &list, "-o", "l.safetensors", "--backend", "cpu"];
    expect(folder.path(), &line, 0);
    let (shape, values) = tensor(&folder.path().join("l.safetensors"), "logits");
    values.chunks(shape[1]).map(<[f32]>::to_vec).collect()
}

/// The product of the head and a vector.
fn headed(folder: &TempDir, vector: &[f32]) -> Vec<f32> {
    let (shape, head) = tensor(&folder.path().join("m/model.safetensors"), "lm_head.weight");
    assert_eq!(shape[1], vector.len());
    let product = |row: &[f32]| row.iter().zip(vector).map(|(w, x)| w * x).sum();
    head.chunks(shape[1]).map(product).collect()
}

#[track_caller]
fn is_near(found: &[f32], wanted: &[f32]) {
    assert_eq!(found.len(), wanted.len());
    let off = found.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off < 2e-5, "{off}");
}

#[test]
fn embeddings_are_final_hidden_states() {
    let folder = model("llama-mini");
    // Longer than one prefill chunk.
    let ids: Vec<u32> = (0..90).map(|at| at * 37 % 500 + 3).collect();
    let rows = logits(&folder, &ids);
    for (pooler, wanted) in [
        (PLAIN_LAST, rows[89].clone()),
        (
            PLAIN_MEAN,
            (0..rows[0].len())
                .map(|at| rows.iter().map(|row| row[at]).sum::<f32>() / rows.len() as f32)
                .collect(),
        ),
        (r#"{"pooling_type": "CLS", "normalize": false}"#, rows[0].clone()),
    ] {
        let arguments = ["--pooler-config", pooler, "--max-num-batched-tokens", "32"];
        let server = Server::start(folder.path(), &arguments);
        let answer = embed(&server, &json!({ "input": ids, "model": "m" }));
        assert_eq!(answer["object"], "list");
        assert_eq!(answer["usage"], json!({ "prompt_tokens": 90, "total_tokens": 90 }));
        let own = vector(&answer["data"][0]["embedding"]);
        is_near(&headed(&folder, &own), &wanted);
    }
}

#[test]
fn accepts_all_input_forms_and_both_encodings() {
    let folder = model("granite-hybrid-mini");
    let server = Server::start(folder.path(), &[]);
    let one = |input: Value| {
        let answer = embed(&server, &json!({ "input": input, "user": "u" }));
        assert_eq!(answer["data"][0]["object"], "embedding");
        vector(&answer["data"][0]["embedding"])
    };
    let hello = one(json!("hello"));
    let length = hello.iter().map(|x| x * x).sum::<f32>();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    // A tokenizer of bytes.
    is_near(&one(json!([104, 101, 108, 108, 111])), &hello);
    let you = one(json!("you and me"));
    let both = embed(&server, &json!({ "input": ["hello", "you and me"] }));
    assert_eq!(both["usage"]["prompt_tokens"], 15);
    for (at, wanted) in [&hello, &you].into_iter().enumerate() {
        assert_eq!(both["data"][at]["index"], at);
        is_near(&vector(&both["data"][at]["embedding"]), wanted);
    }
    let lists = embed(&server, &json!({ "input": [[104, 105], [104, 101, 108, 108, 111]] }));
    is_near(&vector(&lists["data"][1]["embedding"]), &hello);
    let packed = embed(&server, &json!({ "input": "hello", "encoding_format": "base64" }));
    let bytes = from_base64(packed["data"][0]["embedding"].as_str().unwrap());
    let values: Vec<f32> = bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
    is_near(&values, &hello);
    let whole = json!({ "input": "hello", "dimensions": hello.len() });
    is_near(&vector(&embed(&server, &whole)["data"][0]["embedding"]), &hello);
    wait(|| server.is_free());
}

fn from_base64(text: &str) -> Vec<u8> {
    let value = |letter: u8| match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let text = text.trim_end_matches('=').as_bytes();
    let groups = text.chunks(4).flat_map(|group| {
        let word = group.iter().fold(0u32, |word, at| word << 6 | u32::from(value(*at)));
        let word = word << (6 * (4 - group.len()));
        word.to_be_bytes()[1..group.len()].to_vec()
    });
    groups.collect()
}

#[test]
fn follows_sentence_transformers_files() {
    let folder = model("llama-mini");
    let write = |name: &str, text: &str| {
        let path = folder.path().join("m").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let modules = |more: &str| {
        let kind = "sentence_transformers.models";
        format!(
            r#"[{{"path": "", "type": "{kind}.Transformer"}}, {{"path": "1_Pooling", "type": "{kind}.Pooling"}}{more}]"#
        )
    };
    write("modules.json", &modules(""));
    write("1_Pooling/config.json", r#"{"pooling_mode_mean_tokens": true}"#);
    let input = json!({ "input": "some words" });
    let of = |arguments: &[&str]| {
        let server = Server::start(folder.path(), arguments);
        vector(&embed(&server, &input)["data"][0]["embedding"])
    };
    is_near(&of(&[]), &of(&["--pooler-config", PLAIN_MEAN]));
    write(
        "modules.json",
        &modules(r#", {"path": "2", "type": "sentence_transformers.models.Dense"}"#),
    );
    let server = Server::start(folder.path(), &[]);
    refused(&server, &input, "unsupported_model", "the module `Dense`");
}

#[test]
fn rejects_invalid_embedding_requests() {
    let folder = model("llama-mini");
    let server = Server::start(folder.path(), &["--max-model-len", "64"]);
    let long = "x".repeat(65);
    refused(&server, &json!({ "input": long }), "context_length_exceeded", "64 tokens");
    refused(&server, &json!({ "input": ["hi", long] }), "context_length_exceeded", "64 tokens");
    // A text may fill the context.
    embed(&server, &json!({ "input": "x".repeat(64) }));
    refused(&server, &json!({ "input": "" }), "empty_string", "without tokens");
    refused(
        &server,
        &json!({ "input": "hi", "dimensions": 8 }),
        "unsupported_value",
        "`dimensions` is 8",
    );
    refused(&server, &json!({ "input": [] }), "empty_array", "`input` is []");
    refused(&server, &json!({}), "missing_required_parameter", "`input` is missing");
    let many = json!({ "input": vec!["a"; 2049] });
    refused(&server, &many, "array_above_max_length", "2049 texts");
    for (body, words) in [
        (json!({ "input": 3 }), "`input` is 3"),
        (json!({ "input": ["a", 3] }), "`input` is"),
        (json!({ "input": [100_000] }), "beyond the model's vocabulary"),
        (json!({ "input": "a", "encoding_format": "int8" }), "float or base64"),
    ] {
        let answer = server.post("/v1/embeddings", &body);
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.body.contains(words), "{}", answer.body);
    }
    wait(|| server.is_free());
}

/// Embeds while other requests generate, with fewer slots than texts.
#[test]
fn embeds_while_others_generate() {
    let folder = model("granite-moe-mini");
    let server = Server::start(folder.path(), &["--max-num-seqs", "2"]);
    let texts: Vec<String> =
        (0..12).map(|at| format!("text {at} {}", "y".repeat(at * 9))).collect();
    let alone: Vec<Vec<f32>> = texts
        .iter()
        .map(|text| vector(&embed(&server, &json!({ "input": text }))["data"][0]["embedding"]))
        .collect();
    let prompt = json!({ "prompt": "hello", "max_tokens": 60, "temperature": 0, "model": "m" });
    let say = || server.post("/v1/completions", &prompt).json()["choices"][0]["text"].clone();
    let wanted = say();
    std::thread::scope(|scope| {
        let answers: Vec<_> = (0..3).map(|_| scope.spawn(say)).collect();
        let together = embed(&server, &json!({ "input": texts }));
        for (at, wanted) in alone.iter().enumerate() {
            is_near(&vector(&together["data"][at]["embedding"]), wanted);
        }
        answers.into_iter().for_each(|answer| assert_eq!(answer.join().unwrap(), wanted));
    });
    wait(|| server.is_free());
}
