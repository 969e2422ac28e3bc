//! `firstlight synth` and `firstlight logits`: a model's folder in, logits out, and every mistake named.

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
    refuses(here, &on("m", "1,512"), &["token 512 is beyond the model's vocabulary of 512"]);
    std::fs::write(here.join("m/config.json"), r#"{"model_type": "llama"}"#).unwrap();
    refuses(here, &on("m", "1"), &["llama is no model family"]);
    assert!(!here.join("o.safetensors").exists());
}
