//! Memory of a model is predicted within 5 % before it is loaded; a model that does not fit is refused with the numbers.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.
#![cfg(target_os = "linux")] // The peak memory of a process is read only on Linux.

mod support;

use models::{SynthOptions, shape, synth};
use serde_json::{Value, json};
use std::path::Path;
use support::{json as run, refuses};
use tempfile::tempdir;

/// Writes a shape with some keys replaced.
fn draw(name: &str, keys: &[(&str, Value)], folder: &Path) {
    let config = shape(name).unwrap();
    let config = keys.iter().fold(config, |config, (key, value)| config.with(key, value.clone()));
    synth(config, &folder.join("m"), &SynthOptions::default()).unwrap();
}

/// Compares the predicted memory with the peak that the kernel counted. The model has to be large, because the resident part of
/// the program's code varies.
fn check(folder: &Path, arguments: &[&str]) {
    let line = ["run", "m", "-n", "2", "--dtype", "f32", "--ids"];
    let ran = run(folder, &[&line, arguments].concat(), 0);
    let bytes = |key: &str| ran[key].as_u64().unwrap() as f64;
    let (predicted, peak) = (bytes("predicted_memory_bytes"), bytes("peak_memory_bytes"));
    assert!(peak > 400e6, "{peak}");
    let ratio = predicted / peak;
    assert!((0.95..=1.05).contains(&ratio), "{arguments:?}: {predicted} of {peak}, {ratio:.3}");
}

#[test]
fn peak_memory_is_predicted_within_5_percent() {
    let folder = tempdir().unwrap();
    let keys = [
        ("vocab_size", json!(40_000)),
        ("hidden_size", json!(512)),
        ("mamba_n_heads", json!(32)),
        ("mamba_d_head", json!(32)),
        ("shared_intermediate_size", json!(12_000)),
    ];
    draw("granite-hybrid-mini", &keys, folder.path());
    let prompt: Vec<String> = (0..64).map(|token| token.to_string()).collect();
    check(folder.path(), &["1,2,3"]);
    check(folder.path(), &[&prompt.join(","), "--chunk", "64"]);

    let folder = tempdir().unwrap();
    let keys = [
        ("vocab_size", json!(40_000)),
        ("hidden_size", json!(768)),
        ("moe_intermediate_size", json!(1_024)),
    ];
    draw("kimi-linear-mini", &keys, folder.path());
    check(folder.path(), &["1,2,3"]);
}

#[test]
fn refuses_model_that_does_not_fit() {
    let folder = tempdir().unwrap();
    let here = folder.path();
    // A small model with a context that no memory can hold.
    let layers = 48;
    let keys = [
        ("max_position_embeddings", json!(16_000_000)),
        ("num_hidden_layers", json!(layers)),
        ("layer_types", json!(vec!["attention"; layers])),
    ];
    draw("granite-rope-mini", &keys, here);
    let ids = ["1"; 4].join(",");
    refuses(
        here,
        &["run", "m", "--ids", &ids, "-n", "15000000", "--stop-ids", "1"],
        &["the model needs ", "weights ", "states 0 B", "caches ", " are free (/"],
    );
}
