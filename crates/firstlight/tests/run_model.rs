//! `firstlight synth`, `logits` and `run`: a model's folder in, logits or text out, and every mistake named.

#![allow(clippy::unwrap_used)] // Test helpers beside the tests.

mod support;

use safetensors::tensor::{Dtype, SafeTensors};
use std::path::Path;
use support::{expect, json, refuses};
use tempfile::tempdir;

fn logits(path: &Path) -> (Vec<usize>, Vec<f32>) {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor("logits").unwrap();
    assert_eq!(tensor.dtype(), Dtype::F32);
    let values = tensor.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    (tensor.shape().to_vec(), values.collect())
}

/// Draws a shape and gives the logits of some tokens.
fn run(folder: &Path, arguments: &[&str]) -> (Vec<f32>, serde_json::Value) {
    let line =
        [&["logits", "m", "--ids", "5,1,5,300,2", "-o", "out.safetensors"], arguments].concat();
    let ran = json(folder, &line, 0);
    let (shape, values) = logits(&folder.join("out.safetensors"));
    assert_eq!(shape, [5, 512]);
    (values, ran)
}

#[test]
fn a_random_model_gives_the_same_logits_in_chunks_and_says_which_kernels_ran() {
    for (name, kernels) in [
        ("granite-moe-mini", ["attention.", "conv1d.", "linear.f32", "ssd."]),
        ("kimi-linear-mini", ["attention.", "conv1d.", "linear.f32", "kda."]),
    ] {
        let folder = tempdir().unwrap();
        let drawn = json(folder.path(), &["synth", name, "m", "--seed", "3"], 0);
        assert!(drawn["parameters"].as_u64().unwrap() > 50_000, "{drawn}");
        let (whole, ran) = run(folder.path(), &[]);
        for kernel in kernels {
            let launches = ran["launches"].as_object().unwrap();
            assert!(launches.keys().any(|name| name.starts_with(kernel)), "{kernel}: {ran}");
        }
        let (chunked, _) = run(folder.path(), &["--chunk", "2"]);
        let furthest = whole.iter().zip(&chunked).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(furthest < 1e-5, "{name}: {furthest}");
        let (rounded, _) = run(folder.path(), &["--dtype", "bf16"]);
        assert_ne!(whole, rounded, "{name}: bfloat16 rounds");
    }
}

#[test]
fn shapes_are_listed_and_mistakes_named() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let (listed, _) = expect(here, &["synth"], 0);
    assert!(
        listed.contains("granite-4.0-h-micro") && listed.contains("kimi-linear-48b-a3b"),
        "{listed}"
    );
    refuses(here, &["synth", "gpt-2", "m"], &["there is no model shape `gpt-2`"]);
    refuses(
        here,
        &["synth", "granite-hybrid-mini", "m", "--layers", "9"],
        &["`num_hidden_layers` is 4"],
    );
    let (said, _) = expect(here, &["synth", "granite-hybrid-mini", "m", "--layers", "2"], 0);
    assert!(said.contains("parameters of random granite-hybrid-mini in m"), "{said}");
    refuses(here, &["synth", "granite-hybrid-mini", "m"], &["m: is not empty"]);
    let on = |model: &'static str, ids: &'static str| {
        ["logits", model, "--ids", ids, "-o", "o.safetensors"]
    };
    refuses(here, &on("n", "1"), &["n/config.json"]);
    refuses(here, &on("org/n", "1"), &["the cache has no model org/n"]);
    refuses(here, &on("m", "1,512"), &["token 512 is beyond the model's vocabulary of 512"]);
    std::fs::write(here.join("m/config.json"), r#"{"model_type": "llama"}"#).unwrap();
    refuses(here, &on("m", "1"), &["llama is no model family"]);
    assert!(!here.join("o.safetensors").exists());
}

#[test]
fn a_model_continues_texts_and_says_what_it_took() {
    for name in ["granite-moe-mini", "kimi-linear-mini"] {
        let folder = tempdir().unwrap();
        let here = folder.path();
        expect(here, &["synth", name, "m"], 0);
        let line = ["run", "m", "-p", "hello", "-n", "9", "--temperature", "1"];
        let ran = json(here, &line, 0);
        let answer = &ran["answers"][0];
        assert_eq!(answer["prompt_tokens"], 5, "a token a byte: {ran}");
        assert_eq!(
            (answer["tokens"].as_array().unwrap().len(), &answer["ended"]),
            (9, &"limit".into())
        );
        assert_eq!(ran["agree"], true, "{ran}");
        for key in [
            "first_token_cold_ms",
            "first_token_warm_ms",
            "tokens_per_second",
            "percent_of_bandwidth_limit",
            "read_bytes_per_second",
        ] {
            assert!(ran[key].as_f64().unwrap() > 0.0, "{key}: {ran}");
        }
        let launches = ran["launches"].as_object().unwrap();
        assert!(launches.keys().any(|kernel| kernel.starts_with("linear.")), "{ran}");
        let (text, _) = expect(here, &line, 0);
        for words in
            ["5 token ids read, 9 added (limit)", "decoding and prefill agree", "attention."]
        {
            assert!(text.contains(words), "no `{words}` in {text}");
        }
        // Several at once are each what it is alone.
        let both = json(here, &[&line[..], &["-p", "x"]].concat(), 0);
        assert_eq!(both["answers"][0], *answer);
        assert_eq!(both["answers"][1]["prompt_tokens"], 1);
        assert!(both["percent_of_bandwidth_limit"].is_null());
        // A token that was chosen ends the answer where it is said to, and is not part of it.
        let third = answer["tokens"][2].to_string();
        let stopped = json(here, &[&line[..], &["--stop-ids", &third]].concat(), 0);
        assert_eq!(stopped["answers"][0]["ended"], "stop id");
        assert!(stopped["answers"][0]["tokens"].as_array().unwrap().len() <= 2);
        // One token alone has no decoding to measure or to check.
        let one = json(here, &["run", "m", "--ids", "7", "-n", "1", "--dtype", "f32"], 0);
        assert!(
            one["tokens_per_second"].is_null() && one["decode_and_prefill_difference"].is_null()
        );
    }
}

#[test]
fn answers_follow_the_models_template_and_mistakes_are_named() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    expect(here, &["synth", "granite-rope-mini", "m"], 0);
    refuses(here, &["run", "m", "--chat", "hi"], &["there is no chat template"]);
    let template = "<{{ messages[0].content }}>{% if add_generation_prompt %}:{% endif %}";
    std::fs::write(here.join("m/chat_template.jinja"), template).unwrap();
    let ran = json(here, &["run", "m", "--chat", "hi", "-n", "2"], 0);
    assert_eq!(ran["answers"][0]["prompt_tokens"], "<hi>:".len());
    refuses(here, &["run", "m", "-p", "x", "-n", "4096"], &["have 4097 tokens", "context is 4096"]);
    refuses(here, &["run", "m", "-p", "x", "--top-p", "0"], &["top-p is 0"]);
    refuses(here, &["run", "m", "-p", "", "-n", "1"], &["prompt 0 has no tokens"]);
    let ranks = std::fs::read_to_string(here.join("m/tiktoken.model")).unwrap() + "aGU= 256\n";
    std::fs::write(here.join("m/tiktoken.model"), ranks).unwrap();
    refuses(here, &["run", "m", "-p", "x"], &["ids up to 512", "a vocabulary of 512"]);
    std::fs::remove_file(here.join("m/tiktoken.model")).unwrap();
    refuses(here, &["run", "m", "-p", "x"], &["m/tokenizer.json"]);
    json(here, &["run", "m", "--ids", "5,6", "-n", "2"], 0);
}

#[test]
fn a_model_fits_or_does_not() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    let drawn = json(here, &["synth", "granite-moe-mini", "m"], 0);
    let fits = json(here, &["fit", "m", "--context", "2048", "--batch", "4"], 0);
    let memory = &fits["model"]["memory"];
    // Counted from the headers, to the last parameter.
    assert_eq!(memory["parameters"]["value"], drawn["parameters"]);
    assert_eq!((&memory["context_tokens"], &memory["sequences"]), (&2048.into(), &4.into()));
    assert_eq!(memory["fits"], true, "{fits}");
    // What run itself takes is told beside it.
    let engine = &fits["engine"];
    let peak = ["weights", "states", "caches"]
        .map(|part| engine[format!("{part}_bytes")].as_u64().unwrap())
        .iter()
        .sum::<u64>();
    assert!(engine["peak_bytes"].as_u64().unwrap() > peak, "{fits}");
    let (said, _) = expect(here, &["fit", "m", "--context", "2048"], 0);
    assert!(said.contains("firstlight run on the processor needs "), "{said}");
    // Half a million times a million bytes of cache are more than any machine has.
    let (said, _) = expect(here, &["fit", "m", "--batch", "1000000000"], 1);
    for words in ["does not fit", "model-memory", "; it does not fit, "] {
        assert!(said.contains(words), "no `{words}` in {said}");
    }
    refuses(here, &["fit", "n"], &["n does not exist"]);
}
