//! Folders and files in formats that do not run: the error names the format, the hint says what to do.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

use models::{Model, SynthOptions, shape, synth};
use std::fs;
use std::path::{Path, PathBuf};

/// A complete model.
fn model(folder: &Path) -> PathBuf {
    let path = folder.join("m");
    let options = SynthOptions { seed: 3, layers: Some(1), shard_bytes: usize::MAX };
    synth(shape("llama-mini").unwrap(), &path, &options).unwrap();
    path
}

/// Writes files into a folder `m`, empty or a model without weights, and checks the error and its hint.
#[track_caller]
fn check(with_config: bool, files: &[(&str, &str)], error: &str, hint: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = match with_config {
        true => model(folder.path()),
        false => folder.path().join("m"),
    };
    fs::create_dir_all(&path).unwrap();
    let _ = fs::remove_file(path.join("model.safetensors"));
    for (name, text) in files {
        let file = path.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    refuses(&path, error, hint);
}

#[track_caller]
fn refuses(path: &Path, error: &str, hint: &str) {
    let found = Model::read(path).unwrap_err();
    let words = found.to_string();
    assert!(words.contains(error) && !words.contains('\n'), "{words}");
    let advice = found.hint().unwrap_or_default();
    assert!(advice.contains(hint), "{words}: {advice}");
}

#[test]
fn adapters_are_named_with_their_base_model() {
    let lora = r#"{"peft_type": "LORA", "base_model_name_or_path": "org/base"}"#;
    let files = [("adapter_config.json", lora), ("adapter_model.safetensors", "")];
    let error = "m: is a peft adapter (LORA) for org/base, not a whole model";
    check(false, &files, error, "merge_and_unload()");
    let older = [("adapter_config.json", "{}"), ("adapter_model.bin", "")];
    check(false, &older, "is a peft adapter for its base model", "merge_and_unload()");
    // Next to a config, but without the base model's weights.
    check(true, &files, error, "merge_and_unload()");
}

#[test]
fn adapter_next_to_a_complete_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(folder.path());
    fs::write(path.join("adapter_config.json"), r#"{"peft_type": "LORA"}"#).unwrap();
    // A merged model may keep the adapter's config of its training.
    Model::read(&path).unwrap();
    fs::write(path.join("adapter_model.safetensors"), "").unwrap();
    let error =
        "adapter_config.json: a peft adapter (LORA) for its base model is next to a whole model";
    refuses(&path, error, "move adapter_config.json and adapter_model.* away");
}

#[test]
fn weights_of_other_formats_are_named() {
    let save = "save_pretrained";
    for (name, error, hint) in [
        ("pytorch_model.bin", "pytorch_model.bin: has weights as a Python pickle", save),
        ("pytorch_model.bin.index.json", "has weights as a Python pickle", save),
        ("pytorch_model-00001-of-00002.bin", "has weights as a Python pickle", save),
        ("consolidated.00.pth", "consolidated.00.pth: has weights as a Python pickle", save),
        ("model.pt", "model.pt: has weights as a Python pickle", save),
        ("tf_model.h5", "tf_model.h5: has TensorFlow weights", save),
        ("flax_model.msgpack", "flax_model.msgpack: has Flax weights", save),
        ("model.onnx", "model.onnx: is an ONNX model", "safetensors"),
        ("onnx/model.onnx", "m/onnx: is an ONNX model", "safetensors"),
        ("openvino_model.xml", "is an OpenVINO model", "safetensors"),
        ("rank0.engine", "rank0.engine: is a TensorRT engine", "safetensors"),
        ("zero_to_fp32.py", "is a DeepSpeed checkpoint", "zero_to_fp32.py"),
        ("m-Q4_0.gguf", "m: is a folder with GGUF files", "name the file: "),
    ] {
        check(true, &[(name, "x")], error, hint);
        check(false, &[(name, "x")], error, hint);
    }
    check(false, &[("model_index.json", "{}")], "is a diffusers pipeline", "causal language model");
    check(false, &[("params.json", "{}")], "is a model in Mistral's own format", "safetensors");
    let inner = [("checkpoint-500/config.json", "{}"), ("trainer_state.json", "{}")];
    check(
        false,
        &inner,
        "m: has no config.json, but a folder with one is inside",
        "checkpoint-500",
    );
}

#[test]
fn incomplete_downloads_and_pointers_are_named() {
    let part = [("model.safetensors.incomplete", "")];
    check(
        true,
        &part,
        "model.safetensors.incomplete: is an unfinished download",
        "finish or repeat",
    );
    let inside = [(".cache/huggingface/download/abc.incomplete", "")];
    check(true, &inside, "abc.incomplete: is an unfinished download", "finish or repeat");
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 10\n";
    for name in ["model.safetensors", "config.json", "model.safetensors.index.json"] {
        let error = format!("{name}: is a Git LFS pointer, not the file itself");
        check(true, &[(name, pointer)], &error, "git lfs pull");
    }
    let page = "<!DOCTYPE html><html></html>";
    check(true, &[("model.safetensors", page)], "is an HTML page", "a gated model needs a token");
}

#[test]
fn file_given_as_a_model_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(folder.path()).join("model.safetensors");
    refuses(&path, "is a file of weights without its config.json", "name the folder");
    let pickle = folder.path().join("pytorch_model.bin");
    fs::write(&pickle, "x").unwrap();
    refuses(&pickle, "pytorch_model.bin: has weights as a Python pickle", "save_pretrained");
    let pointer = folder.path().join("m.gguf");
    fs::write(&pointer, "version https://git-lfs.github.com/spec/v1\n").unwrap();
    refuses(&pointer, "is a Git LFS pointer", "git lfs pull");
}
