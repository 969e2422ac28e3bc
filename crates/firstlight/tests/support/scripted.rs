//! A Llama whose greedy decoding emits a chosen list of tokens, for tests of detokenizers, parsers, stop strings and streams.
//!
//! Attention heads copy the codes of earlier tokens, each head at one distance, into the residual stream (constant queries and keys,
//! which RoPE turns into a selection by distance). One MLP neuron for each position of the script fires on the tokens before it and
//! writes the code of the next one. The longest context wins, so tokens may repeat within a script. After any other text the model
//! emits the script's first token: the script begins after every prompt, and again after its own end. Only a prompt that ends as the
//! script begins (with its first token, say) is continued from there.

use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;

/// Dimensions of a token's code, of a head, and of each slot of the residual stream.
const CODE: usize = 64;
/// How far before the newest token the tokens are that the next one is chosen by.
const DISTANCES: [usize; 16] = [0, 1, 2, 3, 4, 5, 7, 10, 14, 20, 28, 40, 56, 80, 112, 160];
const CONTEXT: usize = DISTANCES.len();
/// The slot that the output head reads.
const OUTPUT: usize = CONTEXT * CODE;
/// The dimension that is always 1.
const ONE: usize = OUTPUT + CODE;
const HIDDEN: usize = ONE + CODE;
const THETA: f64 = 10_000.0;

/// Writes config.json, tokenizer.json and the weights of a model whose answers are `script`. The script should end with a token
/// that ends answers (`end`, which config.json names); without one the answer is cut off by the request's limit.
///
/// # Panics
/// When two positions of the script have the same tokens before them, at all the distances, and another one next.
pub fn write(folder: &Path, tokenizer: &Value, script: &[u32], end: Option<u32>) {
    std::fs::create_dir_all(folder).unwrap();
    let vocabulary = vocabulary(tokenizer).max(script.iter().max().map_or(0, |id| id + 1) as usize);
    check(script);
    let neurons = (script.len().max(2) - 1).next_multiple_of(CODE);
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary,
        "hidden_size": HIDDEN, "intermediate_size": neurons, "num_hidden_layers": 1,
        "num_attention_heads": CONTEXT, "num_key_value_heads": CONTEXT, "head_dim": CODE,
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": THETA,
        "max_position_embeddings": 16384, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "eos_token_id": end,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(folder.join("model.safetensors"), weights(vocabulary, neurons, script)).unwrap();
}

/// A model that says `text`, with a tokenizer of single bytes and of `special` tokens, which are found in the text. An answer ends by
/// the first special token.
pub fn say(folder: &Path, text: &str, special: &[&str]) {
    let tokenizer = byte_tokenizer(special);
    let mut script = byte_ids(text, special);
    script.push(256);
    write(folder, &tokenizer, &script, Some(256));
}

/// A byte-level tokenizer.json: ids 0 to 255 are bytes, the special tokens follow.
pub fn byte_tokenizer(special: &[&str]) -> Value {
    let mut next = 0x100;
    let vocabulary: serde_json::Map<String, Value> = (0..=255u8)
        .map(|byte| {
            let letter = match byte {
                0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
                _ => {
                    next += 1;
                    char::from_u32(next - 1).unwrap()
                }
            };
            (letter.to_string(), json!(byte))
        })
        .collect();
    let added = special.iter().enumerate().map(|(at, content)| {
        json!({
            "id": 256 + at, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true,
        })
    });
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
    });
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added.collect::<Vec<_>>(), "normalizer": null, "pre_tokenizer": bytes,
        "post_processor": null, "decoder": bytes,
        "model": { "type": "BPE", "vocab": vocabulary, "merges": [] },
    })
}

/// The ids of a text by [`byte_tokenizer`].
pub fn byte_ids(text: &str, special: &[&str]) -> Vec<u32> {
    let (mut ids, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.bytes().next() {
        match special.iter().position(|token| rest.starts_with(token)) {
            Some(at) => {
                ids.push(256 + u32::try_from(at).unwrap());
                rest = &rest[special[at].len()..];
            }
            None => {
                let letter = rest.chars().next().unwrap().len_utf8();
                debug_assert!(rest.as_bytes()[0] == first);
                ids.extend(rest.as_bytes()[..letter].iter().map(|byte| u32::from(*byte)));
                rest = &rest[letter..];
            }
        }
    }
    ids
}

/// The largest id of a tokenizer.json and one.
fn vocabulary(tokenizer: &Value) -> usize {
    let model = match &tokenizer["model"]["vocab"] {
        Value::Object(ids) => ids.values().filter_map(Value::as_u64).max().map_or(0, |id| id + 1),
        Value::Array(pieces) => pieces.len() as u64,
        _ => 0,
    };
    let added = tokenizer["added_tokens"].as_array().into_iter().flatten();
    let added = added.filter_map(|token| token["id"].as_u64()).max().map_or(0, |id| id + 1);
    usize::try_from(model.max(added)).unwrap()
}

/// The tokens that a position of the script is recognized by, the newest first.
fn context(script: &[u32], at: usize) -> Vec<u32> {
    let before = &script[..at];
    let token = |distance: &usize| before.iter().rev().nth(*distance).copied();
    DISTANCES.iter().map_while(token).collect()
}

fn check(script: &[u32]) {
    let mut seen: HashMap<Vec<u32>, u32> = HashMap::new();
    for at in DISTANCES[CONTEXT - 1] + 1..script.len() {
        let next = *seen.entry(context(script, at)).or_insert(script[at]);
        assert_eq!(next, script[at], "position {at} of the script has the context of another one");
    }
}

/// Codes of ±1 as bits, each far from those of the script's tokens.
fn codes(vocabulary: usize, script: &[u32]) -> Vec<u64> {
    const FAR: u32 = 18;
    let mut state = 0u64;
    let mut draw = move || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut used: Vec<u32> = script.to_vec();
    used.sort_unstable();
    used.dedup();
    let mut codes = vec![0u64; vocabulary];
    let mut chosen: Vec<u64> = Vec::new();
    let others = (0..vocabulary).filter(|id| used.binary_search(&(*id as u32)).is_err());
    let all: Vec<usize> = used.iter().map(|id| *id as usize).chain(others).collect();
    for (rank, id) in all.into_iter().enumerate() {
        let code = loop {
            let code = draw();
            if chosen.iter().all(|other| (other ^ code).count_ones() >= FAR) {
                break code;
            }
        };
        codes[id] = code;
        if rank < used.len() {
            chosen.push(code);
        }
    }
    codes
}

/// A matrix, zero but for what is set.
struct Matrix {
    name: &'static str,
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Matrix {
    fn new(name: &'static str, rows: usize, columns: usize) -> Self {
        Self { name, shape: vec![rows, columns], values: vec![0.0; rows * columns] }
    }

    fn ones(name: &'static str) -> Self {
        Self { name, shape: vec![HIDDEN], values: vec![1.0; HIDDEN] }
    }

    fn set(&mut self, row: usize, column: usize, value: f64) {
        self.values[row * self.shape[1] + column] = value as f32;
    }

    fn bytes(&self) -> impl Iterator<Item = u8> {
        // To the nearest bfloat16.
        let half = |value: &f32| ((value.to_bits() + 0x8000) >> 16) as u16;
        self.values.iter().flat_map(move |value| half(value).to_le_bytes())
    }
}

fn sign(code: u64, dimension: usize) -> f64 {
    if code >> dimension & 1 == 1 { 1.0 } else { -1.0 }
}

fn weights(vocabulary: usize, neurons: usize, script: &[u32]) -> Vec<u8> {
    let codes = codes(vocabulary, script);
    // RMSNorm divides by the root of the mean square, which is the same for every token.
    let norm = |ones: usize| ((ones + 1) as f64 / HIDDEN as f64).sqrt();
    let (first, second) = (norm(CODE), norm(CODE * CONTEXT));
    let mut embed = Matrix::new("model.embed_tokens.weight", vocabulary, HIDDEN);
    let mut head = Matrix::new("lm_head.weight", vocabulary, HIDDEN);
    for (id, code) in codes.iter().enumerate() {
        for at in 0..CODE {
            embed.set(id, at, sign(*code, at));
            head.set(id, OUTPUT + at, sign(*code, at));
        }
        embed.set(id, ONE, 1.0);
    }
    // If no neuron fires, the script begins.
    if let Some(id) = script.first() {
        head.set(*id as usize, ONE, 16.0);
    }
    let square = |name| Matrix::new(name, CONTEXT * CODE, HIDDEN);
    let mut q = square("model.layers.0.self_attn.q_proj.weight");
    let mut k = square("model.layers.0.self_attn.k_proj.weight");
    let mut v = square("model.layers.0.self_attn.v_proj.weight");
    let mut o = Matrix::new("model.layers.0.self_attn.o_proj.weight", HIDDEN, CONTEXT * CODE);
    // Large enough that the softmax selects one distance.
    const SHARP: f64 = 16.0;
    for (slot, distance) in DISTANCES.iter().enumerate().skip(1) {
        let row = slot * CODE;
        for pair in 0..CODE / 2 {
            let angle = *distance as f64 * THETA.powf(-2.0 * pair as f64 / CODE as f64);
            k.set(row + pair, ONE, SHARP * first);
            q.set(row + pair, ONE, SHARP * first * angle.cos());
            q.set(row + pair + CODE / 2, ONE, -SHARP * first * angle.sin());
        }
        for at in 0..CODE {
            v.set(row + at, at, 1.0);
            o.set(row + at, row + at, first);
        }
    }
    let mut gate = Matrix::new("model.layers.0.mlp.gate_proj.weight", neurons, HIDDEN);
    let mut up = Matrix::new("model.layers.0.mlp.up_proj.weight", neurons, HIDDEN);
    let mut down = Matrix::new("model.layers.0.mlp.down_proj.weight", HIDDEN, neurons);
    // A match of all codes exceeds the threshold by this; one wrong token falls short by more.
    const MARGIN: usize = 14;
    for at in 1..script.len() {
        let context = context(script, at);
        for (slot, token) in context.iter().enumerate() {
            for bit in 0..CODE {
                gate.set(at - 1, slot * CODE + bit, 0.5 * sign(codes[*token as usize], bit));
            }
        }
        gate.set(at - 1, ONE, -0.5 * (CODE * context.len() - MARGIN) as f64);
        up.set(at - 1, ONE, 2f64.powi(context.len() as i32 - 1) * second);
        for bit in 0..CODE {
            down.set(OUTPUT + bit, at - 1, 0.125 * sign(codes[script[at] as usize], bit));
        }
    }
    let all = [
        embed,
        head,
        q,
        k,
        v,
        o,
        gate,
        up,
        down,
        Matrix::ones("model.layers.0.input_layernorm.weight"),
        Matrix::ones("model.layers.0.post_attention_layernorm.weight"),
        Matrix::ones("model.norm.weight"),
    ];
    let (mut header, mut bytes) = (serde_json::Map::new(), Vec::new());
    for matrix in &all {
        let start = bytes.len();
        bytes.extend(matrix.bytes());
        let entry = json!({
            "dtype": "BF16", "shape": matrix.shape, "data_offsets": [start, bytes.len()],
        });
        header.insert(matrix.name.to_owned(), entry);
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    [&(header.len() as u64).to_le_bytes()[..], &header, &bytes].concat()
}
