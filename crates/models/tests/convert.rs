//! Converts checkpoints to another layout and back, byte for byte; and refuses what cannot be converted.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

use models::{
    CheckpointLayout, Conversion, ConversionResult, ModelError, SynthOptions, shape, synth,
};
use safetensors::SafeTensors;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const RECORD: &str = "firstlight-convert.json";

fn draw(name: &str, shard_bytes: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let options = SynthOptions { seed: 5, layers: None, shard_bytes };
    synth(shape(name).unwrap(), folder.path(), &options).unwrap();
    folder
}

fn convert(
    from: &Path,
    to: &Path,
    layout: CheckpointLayout,
    resume: bool,
) -> Result<ConversionResult, ModelError> {
    Conversion::read(from, layout)?.begin(to, resume)?.write(|_, _| {})
}

/// Every file except the record.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let named = entries.map(|entry| {
        (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).unwrap())
    });
    named.filter(|(name, _)| name != RECORD).collect()
}

/// Type, shape and bytes of every tensor of a folder.
fn tensors(folder: &Path) -> BTreeMap<String, (String, Vec<usize>, Vec<u8>)> {
    let mut all = BTreeMap::new();
    for (_, bytes) in files(folder).iter().filter(|(name, _)| name.ends_with(".safetensors")) {
        for (name, tensor) in SafeTensors::deserialize(bytes).unwrap().tensors() {
            let dtype = format!("{:?}", tensor.dtype());
            all.insert(name, (dtype, tensor.shape().to_vec(), tensor.data().to_vec()));
        }
    }
    all
}

#[test]
fn converting_twice_gives_the_same_bytes() {
    for (shard_bytes, shards) in [(usize::MAX, 1), (100_000, 7)] {
        let hf = draw("kimi-linear-mini", shard_bytes);
        let [fla, back] = [0; 2].map(|_| tempfile::tempdir().unwrap());
        let there = convert(hf.path(), fla.path(), CheckpointLayout::FlaKda, false).unwrap();
        assert_eq!((there.taken_up, there.as_published), (0, None));
        assert_eq!(there.files, files(hf.path()).len());
        let weights = files(fla.path()).keys().filter(|name| name.ends_with("safetensors")).count();
        assert_eq!(weights, shards);

        let (was, is) = (tensors(hf.path()), tensors(fla.path()));
        assert_eq!(is.len(), was.len() + 2, "each KDA layer gets a bias");
        let layer = "model.layers.2.self_attn";
        let published = &was[&format!("{layer}.f_b_proj.weight")];
        assert_eq!(&is[&format!("{layer}.f_proj.1.weight")], published);
        let (dtype, shape, rates) = &is[&format!("{layer}.A_log")];
        assert_eq!((dtype.as_str(), shape.as_slice()), ("F32", &[4][..]));
        assert_eq!(rates, &was[&format!("{layer}.A_log")].2);
        let zeros = ("BF16".to_owned(), vec![64], vec![0; 128]);
        assert_eq!(is[&format!("{layer}.g_proj.1.bias")], zeros);
        assert!(!is.contains_key(&format!("{layer}.g_b_proj.weight")));

        if let Some(index) = files(fla.path()).get("model.safetensors.index.json") {
            let index: serde_json::Value = serde_json::from_slice(index).unwrap();
            // In the order of the source's index, which may differ.
            let named: BTreeSet<&String> =
                index["weight_map"].as_object().unwrap().keys().collect();
            assert!(named.into_iter().eq(is.keys()), "the index names what is there");
            let bytes: usize = is.values().map(|(_, _, data)| data.len()).sum();
            assert_eq!(index["metadata"]["total_size"], bytes);
        }

        let again = convert(fla.path(), back.path(), CheckpointLayout::Hf, false).unwrap();
        assert_eq!(again.as_published, Some(true));
        assert!(files(back.path()) == files(hf.path()), "a file differs");
    }
}

#[test]
fn unusual_header_is_restored() {
    let hf = draw("kimi-linear-mini", usize::MAX);
    let path = hf.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let (length, data) = bytes.split_at(8);
    let (header, data) = data.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    // Extra spaces, and metadata before and after: JSON objects are unordered, files are not.
    let text = String::from_utf8(header.to_vec()).unwrap().replace("\"dtype\":", "\"dtype\" : ");
    let text = text.replace("\"format\":\"pt\"", "\"z\":\"1\",\"format\":\"pt\",\"a\":\"2\"");
    let spaced = [&(text.len() as u64).to_le_bytes(), text.as_bytes(), data].concat();
    fs::write(&path, spaced).unwrap();
    let [fla, back] = [0; 2].map(|_| tempfile::tempdir().unwrap());
    convert(hf.path(), fla.path(), CheckpointLayout::FlaKda, false).unwrap();
    let again = convert(fla.path(), back.path(), CheckpointLayout::Hf, false).unwrap();
    assert_eq!(again.as_published, Some(true));
    assert!(files(back.path()) == files(hf.path()), "a file differs");
}

#[test]
fn changed_weights_are_not_as_published() {
    let hf = draw("kimi-linear-mini", usize::MAX);
    let [fla, back] = [0; 2].map(|_| tempfile::tempdir().unwrap());
    convert(hf.path(), fla.path(), CheckpointLayout::FlaKda, false).unwrap();
    spoil(&fla.path().join("model.safetensors"), |bytes| *bytes.last_mut().unwrap() ^= 1);
    let again = convert(fla.path(), back.path(), CheckpointLayout::Hf, false).unwrap();
    assert_eq!(again.as_published, Some(false));
}

fn spoil(path: &Path, change: impl Fn(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn resuming_keeps_only_verified_files() {
    let hf = draw("kimi-linear-mini", 100_000);
    let fla = tempfile::tempdir().unwrap();
    let whole = convert(hf.path(), fla.path(), CheckpointLayout::FlaKda, false).unwrap();
    let expect = files(fla.path());
    let names: Vec<&String> = expect.keys().filter(|name| name.ends_with("safetensors")).collect();
    let resume = |taken_up: usize| {
        let again = convert(hf.path(), fla.path(), CheckpointLayout::FlaKda, true).unwrap();
        assert_eq!(again, ConversionResult { taken_up, ..whole });
        assert!(files(fla.path()) == expect, "a file differs");
    };
    resume(whole.files);
    // A flipped bit, a truncated file, a missing file, and one left incomplete by a kill.
    spoil(&fla.path().join(names[0]), |bytes| bytes[3_000] ^= 1);
    spoil(&fla.path().join(names[1]), |bytes| bytes.truncate(1_000));
    fs::remove_file(fla.path().join(names[2])).unwrap();
    fs::write(fla.path().join(names[2].replace("safetensors", "part")), b"half").unwrap();
    fs::remove_file(fla.path().join("config.json")).unwrap();
    resume(whole.files - 4);
    // A record that lacks an existing file: nothing verifies that file.
    let record = fla.path().join(RECORD);
    let mut cut: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&record).unwrap()).unwrap();
    cut["files"].as_object_mut().unwrap().remove(names[4]);
    fs::write(&record, cut.to_string()).unwrap();
    resume(whole.files - 1);
    // A source modified since counts as another one.
    let source = hf.path().join(names[3]);
    fs::write(&source, fs::read(&source).unwrap()).unwrap();
    resume(whole.files - 1);
}

/// Compares an error's message, with the folder removed.
fn check(from: &Path, to: &Path, (layout, resume): (CheckpointLayout, bool), expect: &str) {
    let message = convert(from, to, layout, resume).unwrap_err().to_string();
    let [from, to] = [from, to].map(|folder| folder.display().to_string());
    let message =
        message.replace(&to, "OUT").replace(&format!("{from}/"), "").replace(&from, "MODEL");
    assert_eq!(message, expect);
}

#[test]
fn refused_conversion_gives_one_sentence_and_no_files() {
    let out = tempfile::tempdir().unwrap();
    let refused = |from: &Path, layout, expect: &str| {
        check(from, out.path(), (layout, false), expect);
        assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0, "{expect}");
    };
    let granite = draw("granite-hybrid-mini", usize::MAX);
    refused(
        granite.path(),
        CheckpointLayout::FlaKda,
        "the model has no KDA layer, and fla-kda differs in nothing else",
    );
    let hf = draw("kimi-linear-mini", usize::MAX);
    refused(hf.path(), CheckpointLayout::Hf, "the weights of MODEL are hf already");
    let weights = hf.path().join("model.safetensors");
    let whole = fs::read(&weights).unwrap();
    let rename = |from: &str, to: &str| {
        let at = whole.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
        fs::write(&weights, [&whole[..at], to.as_bytes(), &whole[at + from.len()..]].concat())
            .unwrap();
    };
    rename("layers.2.self_attn.f_a_proj", "layers.2.self_attn.f_x_proj");
    refused(
        hf.path(),
        CheckpointLayout::FlaKda,
        "MODEL: lacks 1 tensor that the config wants: `model.layers.2.self_attn.f_a_proj.weight`",
    );
    fs::write(&weights, &whole[..whole.len() - 1]).unwrap();
    let words = format!(
        "model.safetensors is truncated: expected {} bytes, there are {}",
        whole.len(),
        whole.len() - 1
    );
    refused(hf.path(), CheckpointLayout::FlaKda, &words);
    fs::write(&weights, &whole).unwrap();

    // The published layout has no room for a trained bias.
    let fla = tempfile::tempdir().unwrap();
    convert(hf.path(), fla.path(), CheckpointLayout::FlaKda, false).unwrap();
    spoil(&fla.path().join("model.safetensors"), |bytes| {
        let zeros =
            bytes.windows(128).rposition(|part| part.iter().all(|byte| *byte == 0)).unwrap();
        bytes[zeros + 8] = 1;
    });
    refused(
        fla.path(),
        CheckpointLayout::Hf,
        "model.safetensors: tensor `model.layers.2.self_attn.g_proj.1.bias` is not zero, \
         and the published layout has no such bias",
    );

    let held = "OUT holds a conversion already";
    check(hf.path(), fla.path(), (CheckpointLayout::FlaKda, false), held);
    let other = draw("kimi-linear-mini", usize::MAX);
    let back = tempfile::tempdir().unwrap();
    convert(hf.path(), back.path(), CheckpointLayout::FlaKda, false).unwrap();
    check(
        back.path(),
        fla.path(),
        (CheckpointLayout::Hf, true),
        "OUT holds another conversion already",
    );
    let full = "OUT: is not empty, and nothing in it is replaced";
    check(hf.path(), other.path(), (CheckpointLayout::FlaKda, true), full);
}
