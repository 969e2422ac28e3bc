//! Recognizes folders and files in formats that do not run. The error names the format, the hint says what to do.

use crate::{ModelError, read_json};
use std::path::{Path, PathBuf};

/// Files that identify a format, most specific first: extension or file name, the format, and what to do.
const FORMATS: &[(Mark, &str, &str)] = &[
    (Mark::Name("model_index.json"), "is a diffusers pipeline, not a language model", NO_MODEL),
    (Mark::Name(".metadata"), "is a distributed torch checkpoint", SAVE),
    (
        Mark::Name("zero_to_fp32.py"),
        "is a DeepSpeed checkpoint",
        "run its zero_to_fp32.py, then save the model with transformers' save_pretrained",
    ),
    (Mark::Pickle, "has weights as a Python pickle, which can run code when it is loaded", PICKLE),
    (Mark::End(".h5"), "has TensorFlow weights", SAVE),
    (Mark::End(".msgpack"), "has Flax weights", SAVE),
    (Mark::End(".ckpt"), "is a training checkpoint", SAVE),
    (Mark::End(".nemo"), "is a NeMo archive", SAVE),
    (Mark::End(".npz"), "has weights in numpy's format", SAVE),
    (Mark::End(".onnx"), "is an ONNX model", PUBLISHED),
    (Mark::Name("openvino_model.xml"), "is an OpenVINO model", PUBLISHED),
    (Mark::End(".engine"), "is a TensorRT engine", PUBLISHED),
    (Mark::End(".tflite"), "is a TensorFlow Lite model", PUBLISHED),
    (Mark::End(".mlmodel"), "is a Core ML model", PUBLISHED),
    (Mark::End(".mlpackage"), "is a Core ML model", PUBLISHED),
    (Mark::End(".mar"), "is a TorchServe archive", PUBLISHED),
];

const PUBLISHED: &str = "take the repository that has the model's safetensors files";
const NO_MODEL: &str = "name a folder with a causal language model";
const SAVE: &str =
    "load it with its own framework and write safetensors with transformers' save_pretrained";
const PICKLE: &str = "take a repository or a revision with safetensors, or write them with transformers' save_pretrained";

enum Mark {
    Name(&'static str),
    End(&'static str),
    /// `pytorch_model.bin`, its shards and their index, `consolidated.00.pth`, `model.pt`.
    Pickle,
}

impl Mark {
    fn fits(&self, name: &str) -> bool {
        match self {
            Self::Name(mark) => name == *mark,
            Self::End(mark) => name.ends_with(mark),
            Self::Pickle => {
                let model = name.starts_with("pytorch_model") || name.starts_with("model");
                name.ends_with(".pth")
                    || name.ends_with(".pt")
                    || model && (name.ends_with(".bin") || name.ends_with(".bin.index.json"))
            }
        }
    }
}

/// Extensions of incomplete downloads.
const UNFINISHED: &[&str] =
    &[".incomplete", ".part", ".partial", ".crdownload", ".aria2", ".tmp", ".download", ".!qB"];

const ADAPTER: &str = "adapter_config.json";

/// Explains what a folder without config.json or without safetensors files is, if some file identifies it.
pub(crate) fn explain(folder: &Path) -> Option<ModelError> {
    if folder.is_file() {
        return explain_file(folder);
    }
    if let Err(error) = refuse_adapter(folder) {
        return Some(error);
    }
    let names = names(folder);
    if let Some(name) = names.iter().find(|name| UNFINISHED.iter().any(|end| name.ends_with(end))) {
        return Some(unfinished(&folder.join(name)));
    }
    // The hub's tools keep incomplete downloads in a folder inside.
    let cache = folder.join(".cache/huggingface/download");
    let in_flight_steps =
        self::names(&cache).into_iter().find(|name| name.ends_with(".incomplete"));
    if let Some(name) = in_flight_steps {
        return Some(unfinished(&cache.join(name)));
    }
    for (mark, what, hint) in FORMATS {
        if let Some(name) = names.iter().find(|name| mark.fits(name)) {
            return Some(ModelError::file(&folder.join(name), *what).hinted(*hint));
        }
    }
    if folder.join("onnx").is_dir() {
        return Some(ModelError::file(&folder.join("onnx"), "is an ONNX model").hinted(PUBLISHED));
    }
    if let Some(name) = names.iter().find(|name| name.ends_with(".gguf")) {
        let hint = format!("name the file: {}", folder.join(name).display());
        return Some(ModelError::file(folder, "is a folder with GGUF files").hinted(hint));
    }
    if names.iter().any(|name| name == "params.json") {
        let what = "is a model in Mistral's own format (params.json), without config.json";
        return Some(ModelError::file(folder, what).hinted(PUBLISHED));
    }
    inner(folder)
}

/// The one subfolder that is a model: a trainer's last checkpoint, or sentence-transformers' `0_Transformer`.
fn inner(folder: &Path) -> Option<ModelError> {
    let mut models: Vec<PathBuf> = names(folder).iter().map(|name| folder.join(name)).collect();
    models.retain(|path| path.join("config.json").is_file() || path.join(ADAPTER).is_file());
    let last = models.last()?;
    let hint = format!("name it: {}", last.display());
    Some(
        ModelError::file(folder, "has no config.json, but a folder with one is inside")
            .hinted(hint),
    )
}

/// Explains what a file given as a model is.
fn explain_file(path: &Path) -> Option<ModelError> {
    let name = path.file_name()?.to_str()?;
    if name.ends_with(".safetensors") {
        return Some(
            ModelError::file(path, "is a file of weights without its config.json")
                .hinted("name the folder that has config.json and all weight files"),
        );
    }
    let (_, what, hint) = FORMATS.iter().find(|(mark, ..)| mark.fits(name))?;
    Some(ModelError::file(path, *what).hinted(*hint))
}

/// Refuses an adapter, either without its base model or next to a base model that would run without it.
///
/// # Errors
/// [`ModelError::File`] naming the base model.
pub(crate) fn refuse_adapter(folder: &Path) -> Result<(), ModelError> {
    let path = folder.join(ADAPTER);
    let weights = |name: &String| name.starts_with("adapter_model.");
    if !path.is_file() || !names(folder).iter().any(weights) {
        return Ok(());
    }
    let config = read_json(&path).unwrap_or_default();
    let text = |key: &str| config.get(key).and_then(|value| value.as_str());
    let kind = match text("peft_type") {
        Some(kind) => format!("a peft adapter ({kind})"),
        None => "a peft adapter".to_owned(),
    };
    let base = text("base_model_name_or_path").unwrap_or("its base model");
    let has = |name: &str| folder.join(name).is_file();
    let has_model = has("config.json") && (has(super::SINGLE) || has(super::INDEX));
    let (what, hint) = match has_model {
        true => (
            format!("{kind} for {base} is next to a whole model, and adapters are not applied"),
            format!("move {ADAPTER} and adapter_model.* away to run the model without it, or merge both"),
        ),
        false => (
            format!("is {kind} for {base}, not a whole model"),
            "merge it first: peft's AutoPeftModelForCausalLM.from_pretrained(..).merge_and_unload().save_pretrained(OUT)".to_owned(),
        ),
    };
    let path = if has_model { path } else { folder.to_owned() };
    Err(ModelError::file(&path, what).hinted(hint))
}

fn unfinished(path: &Path) -> ModelError {
    ModelError::file(path, "is an unfinished download").hinted("finish or repeat the download")
}

/// Sorted file names of a folder; empty if it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// First bytes of files whose content is not what their name says.
const POINTERS: &[(&[u8], &str, &str)] = &[
    (
        b"version https://git-lfs.github.com/spec/",
        "is a Git LFS pointer, not the file itself",
        "run `git lfs install` and `git lfs pull` in its folder, or download the file",
    ),
    (
        b"# xet version ",
        "is a Xet pointer, not the file itself",
        "download the file with the hub's own tools",
    ),
    (b"<!DOCTYPE html", "is an HTML page, not the file itself", LOGIN),
    (b"<!doctype html", "is an HTML page, not the file itself", LOGIN),
    (b"<html", "is an HTML page, not the file itself", LOGIN),
    (b"Entry not found", "is a hub's error message, not the file itself", LOGIN),
    (b"Access to model ", "is a hub's error message, not the file itself", LOGIN),
    (b"Invalid username or password", "is a hub's error message, not the file itself", LOGIN),
];
const LOGIN: &str = "download the file again; a gated model needs a token";

/// Refuses a placeholder file, such as a Git LFS pointer.
///
/// # Errors
/// [`ModelError::File`] naming the kind of placeholder.
pub(crate) fn refuse_pointer(path: &Path, beginning: &[u8]) -> Result<(), ModelError> {
    match POINTERS.iter().find(|(mark, ..)| beginning.starts_with(mark)) {
        Some((_, what, hint)) => Err(ModelError::file(path, *what).hinted(*hint)),
        None => Ok(()),
    }
}
