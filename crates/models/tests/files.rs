//! Errors of a model's files name the file, key or tensor in one sentence.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

use models::{Architecture, Checkpoint, Config, Model, ModelError, SynthOptions, shape, synth};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn draw(shard_bytes: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let options = SynthOptions { seed: 3, layers: Some(2), shard_bytes };
    synth(shape("granite-hybrid-mini").unwrap(), folder.path(), &options).unwrap();
    folder
}

/// Damages a model and compares the error's message, with the folder removed.
fn check(shard_bytes: usize, spoil: impl Fn(&Path), expect: &str) {
    let folder = draw(shard_bytes);
    spoil(folder.path());
    let message = read(folder.path()).unwrap_err().to_string();
    let shown = format!("{}", folder.path().display());
    let message = message.replace(&format!("{shown}/"), "").replace(&shown, "FOLDER");
    assert_eq!(message, expect);
}

/// Reads a model and every value of its weights.
fn read(folder: &Path) -> Result<(), ModelError> {
    let model = Model::read(folder)?;
    let device = backends::open(facts::BackendKind::Cpu).unwrap();
    let capacity = models::Capacity { sequences: 1, tokens: 1 };
    models::open(model, device, models::Storage::F32, capacity).map(drop)
}

fn shards(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut shards: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|end| end == "safetensors")).collect();
    shards.sort();
    shards
}

fn edit(path: &Path, change: impl Fn(&mut Value)) {
    let mut value: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

/// Changes a header without moving the tensors after it.
fn edit_header(path: &Path, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let bytes = fs::read(path).unwrap();
    let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
    let changed = [&bytes[..at], to.as_bytes(), &bytes[at + to.len()..]].concat();
    fs::write(path, changed).unwrap();
}

#[test]
fn whole_and_sharded_models_are_read() {
    for (shard_bytes, files) in [(usize::MAX, 1), (60_000, 5)] {
        let folder = draw(shard_bytes);
        assert_eq!(shards(folder.path()).len(), files);
        read(folder.path()).unwrap();
    }
}

#[test]
fn damaged_weight_files_are_named() {
    let single = |folder: &Path| folder.join("model.safetensors");
    let all = usize::MAX;
    let len = fs::metadata(single(draw(all).path())).unwrap().len();
    check(all, |folder| fs::remove_file(single(folder)).unwrap(), "model.safetensors is missing");
    check(
        all,
        |folder| {
            let bytes = fs::read(single(folder)).unwrap();
            fs::write(single(folder), &bytes[..bytes.len() - 10]).unwrap();
        },
        &format!("model.safetensors is truncated: expected {len} bytes, there are {}", len - 10),
    );
    check(
        all,
        |folder| fs::write(single(folder), b"abc").unwrap(),
        "model.safetensors is truncated: expected 8 bytes, there are 3",
    );
    check(
        all,
        |folder| edit_header(&single(folder), "layers.1.mamba.D", "layers.1.mamba.E"),
        "FOLDER: lacks 1 tensor that the config wants: `model.layers.1.mamba.D`",
    );
    check(
        all,
        |folder| {
            let config = folder.join("config.json");
            edit(&config, |config| {
                config["num_hidden_layers"] = json!(1);
                config["layer_types"] = json!(["mamba"]);
            });
        },
        "FOLDER: holds 12 tensors that the config does not know: `model.layers.1.input_layernorm.weight`, \
         `model.layers.1.mamba.A_log`, `model.layers.1.mamba.D`, `model.layers.1.mamba.conv1d.bias`, ..",
    );
    check(
        all,
        |folder| edit(&folder.join("config.json"), |config| config["mamba_d_state"] = json!(16)),
        "model.safetensors: tensor `model.layers.0.mamba.in_proj.weight` has shape [328, 64], the config wants [296, 64]",
    );
    // Another vocabulary size is a wrong shape of the embedding.
    check(
        all,
        |folder| edit(&folder.join("config.json"), |config| config["vocab_size"] = json!(500)),
        "model.safetensors: tensor `model.embed_tokens.weight` has shape [512, 64], the config wants [500, 64]",
    );
    check(
        all,
        |folder| {
            let mut bytes = fs::read(single(folder)).unwrap();
            let last = bytes.len() - 2;
            bytes[last..].copy_from_slice(&[0xff, 0x7f]);
            fs::write(single(folder), bytes).unwrap();
        },
        "model.safetensors: tensor `model.norm.weight` is NaN at element 63",
    );
}

#[test]
fn corrupt_weight_files_are_named() {
    let second = |folder: &Path| shards(folder)[1].clone();
    let whole = fs::read(second(draw(60_000).path())).unwrap();
    let len = whole.len() as u64;
    // The size of the header and of the tensors it lists.
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap());
    let cut = |left: u64| {
        move |folder: &Path| {
            let file = fs::File::options().write(true).open(second(folder)).unwrap();
            file.set_len(left).unwrap();
        }
    };
    for (left, wanted) in [(len - 1, len), (len / 2, len), (100, header)] {
        check(
            60_000,
            cut(left),
            &format!(
                "model-00002-of-00005.safetensors is truncated: expected {wanted} bytes, there are {left}"
            ),
        );
    }
    check(
        60_000,
        cut(7),
        "model-00002-of-00005.safetensors is truncated: expected 8 bytes, there are 7",
    );
    // A download extended with zeros.
    check(
        60_000,
        |folder| {
            fs::write(second(folder), vec![0; 4096]).unwrap();
        },
        "model-00002-of-00005.safetensors: is no safetensors file (invalid JSON in header: EOF while parsing a value at line 1 column 0)",
    );
    let a_log = |dtype: &str| format!("\"model.layers.1.mamba.A_log\":{{\"dtype\":\"{dtype}\"");
    check(
        usize::MAX,
        |folder| edit_header(&shards(folder)[0], &a_log("F32"), &a_log("I32")),
        "model.safetensors: tensor `model.layers.1.mamba.A_log` is I32, expected F32, BF16, F16 or F8_E4M3",
    );
    // A NaN is found in any file and any type.
    check(
        usize::MAX,
        |folder| {
            let path = &shards(folder)[0];
            let mut bytes = fs::read(path).unwrap();
            let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            // Four-byte types are first, and of these A_log of the first layer.
            bytes[start + 8..start + 12].copy_from_slice(&f32::NAN.to_le_bytes());
            fs::write(path, bytes).unwrap();
        },
        "model.safetensors: tensor `model.layers.0.mamba.A_log` is NaN at element 2",
    );
}

#[test]
fn damaged_indices_are_named() {
    const INDEX: &str = "model.safetensors.index.json";
    let whole = draw(60_000);
    let index = fs::read_to_string(whole.path().join(INDEX)).unwrap();
    let index: Value = serde_json::from_str(&index).unwrap();
    let total = &index["metadata"]["total_size"];
    fs::remove_file(&shards(whole.path())[1]).unwrap();
    let rest = shards(whole.path()).into_iter().map(|path| fs::metadata(path).unwrap().len());
    let there: u64 = rest.sum();
    check(
        60_000,
        |folder| fs::remove_file(&shards(folder)[1]).unwrap(),
        &format!(
            "model-00002-of-00005.safetensors is missing: expected {total} bytes, there are {there}"
        ),
    );
    check(
        60_000,
        |folder| {
            edit(&folder.join(INDEX), |index| {
                index["weight_map"]["x"] = json!("model-00001-of-00005.safetensors");
            });
        },
        "model-00001-of-00005.safetensors: does not hold tensor `x`, which model.safetensors.index.json promises",
    );
    let nowhere =
        "model.safetensors.index.json: has no `weight_map` from tensors to files in its folder";
    for map in [json!({}), json!({ "x": 3 }), json!({ "x": "../model.safetensors" })] {
        check(
            60_000,
            |folder| edit(&folder.join(INDEX), |index| index["weight_map"] = map.clone()),
            nowhere,
        );
    }
}

/// A weight file with 44 bytes of tensors, as [`TWO`] lists.
fn safetensors(header: &str) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 44]].concat()
}

const TWO: &str = r#"{"__metadata__":{"format":"pt"},
    "a":{"dtype":"BF16","shape":[3,4],"data_offsets":[0,24]},"b":{"dtype":"F32","shape":[5],"data_offsets":[24,44]}}"#;

#[test]
fn headers_give_parameters_and_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    let sums = || {
        let read = Checkpoint::open(folder.path())?;
        Ok::<_, ModelError>((read.files(), read.parameters(), read.bytes()))
    };
    assert!(sums().unwrap_err().to_string().ends_with("model.safetensors is missing"));
    write("model-00001-of-00002.safetensors", &safetensors(TWO));
    assert_eq!(sums().unwrap(), (1, 17, 44));
    // An incomplete download is ignored.
    let index = r#"{"weight_map":{"a":"model-00001-of-00002.safetensors","c":"model-00002-of-00002.safetensors"}}"#;
    write("model.safetensors.index.json", index.as_bytes());
    let error = sums().unwrap_err().to_string();
    assert!(error.ends_with("model-00002-of-00002.safetensors is missing"), "{error}");
    let other = TWO.replace("\"a\"", "\"c\"").replace("\"b\"", "\"d\"");
    write("model-00002-of-00002.safetensors", &safetensors(&other));
    assert_eq!(sums().unwrap(), (2, 34, 88));
    // Weights that are not in the index, such as a second copy of all, are not counted.
    write("consolidated.safetensors", &safetensors(TWO));
    assert_eq!(sums().unwrap(), (2, 34, 88));
}

#[test]
fn invalid_headers_count_no_parameters() {
    let folder = tempfile::tempdir().unwrap();
    let mut longer = safetensors(TWO);
    longer.push(0);
    for bytes in [
        &b""[..],
        b"short",
        &u64::MAX.to_le_bytes(),
        &safetensors("[]"),
        &safetensors("{\"a\":1}"),
        &safetensors(&TWO.replace("[0,24]", "[24,0]")),
        &safetensors(&TWO.replace("[3,4]", "[18446744073709551615,4]")),
        &longer,
    ] {
        fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        let error = Checkpoint::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("model.safetensors"), "{error}");
    }
}

#[test]
fn synth_refuses_a_folder_with_files() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mine"), "x").unwrap();
    let config = shape("granite-hybrid-mini").unwrap();
    let error = synth(config, folder.path(), &SynthOptions::default()).unwrap_err();
    assert!(error.to_string().ends_with("is not empty, and nothing in it is replaced"), "{error}");
}

/// The first words of the error of a changed config.
fn refused(name: &str, key: &str, value: Value, expect: &str) {
    let config = shape(name).unwrap().with(key, value);
    let error = Architecture::of(&config).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{name}: {expect}")), "{error}");
}

#[test]
fn configs_that_cannot_be_run_name_their_key() {
    let granite = "granite-hybrid-mini";
    refused(granite, "hidden_size", Value::Null, "`hidden_size` is missing");
    refused(granite, "logits_scaling", Value::Null, "`logits_scaling` is missing");
    refused(granite, "hidden_act", json!("gelu"), "`hidden_act` is \"gelu\", expected silu");
    refused(
        granite,
        "mamba_n_groups",
        json!(3),
        "`mamba_n_groups` is 3, expected a divisor of the 8",
    );
    refused(
        granite,
        "layer_types",
        json!(["mamba"]),
        "`layer_types` is [\"mamba\"], expected as many",
    );
    refused(
        granite,
        "layer_types",
        json!(["mamba", "mamba", "rwkv", "mamba"]),
        "`layer_types` is [\"mamba\",\"mamba\",\"rwkv\",\"mamba\"], expected no layer of kind `rwkv`, but mamba or attention",
    );
    let other = shape(granite)
        .unwrap()
        .with("architectures", Value::Null)
        .with("model_type", json!("rwkv"));
    let error = Architecture::of(&other).unwrap_err();
    assert_eq!(
        error.to_string(),
        "granite-hybrid-mini: rwkv is no model family that firstlight knows"
    );
    assert_eq!(
        error.hint(),
        "families: granite-hybrid, kimi-linear, qwen3-next, nemotron-h, falcon-h1, lfm2, olmo-hybrid, gemma4, gpt-oss, bamba, jamba, mamba2, mamba, falcon-mamba, plain-attention"
    );
}

#[test]
fn layer_lists_of_kimi_have_each_layer_once() {
    let lists = |full: Value, kda: Value| json!({ "full_attn_layers": full, "kda_layers": kda, "num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4 });
    let kimi = "kimi-linear-mini";
    let key = "linear_attn_config";
    refused(kimi, key, Value::Null, "`linear_attn_config` is missing");
    refused(
        kimi,
        key,
        lists(json!([2, 4]), json!([1])),
        "`linear_attn_config.kda_layers` is [1], expected layer 3 in one of the lists",
    );
    refused(
        kimi,
        key,
        lists(json!([0, 2]), json!([1, 3, 4])),
        "`linear_attn_config.full_attn_layers` is [0,2], expected layers from 1 to 4",
    );
    refused(
        kimi,
        key,
        lists(json!([2, 4]), json!([1, 2, 3])),
        "`linear_attn_config.kda_layers` is [1,2,3], expected layer 2 in one list only",
    );
    refused(kimi, "q_lora_rank", json!(64), "`q_lora_rank` is 64, expected null");
    let groups = "`num_expert_group` is 3, expected groups of equal size, of at least two of the 8";
    refused(kimi, "num_expert_group", json!(3), groups);
}

/// The complete description of an architecture.
fn described(config: Config) -> String {
    format!("{:?}", Architecture::of(&config).unwrap())
}

#[test]
fn both_spellings_of_a_config_give_the_same_architecture() {
    let granite = || shape("granite-hybrid-mini").unwrap();
    let kinds =
        json!(["linear_attention", "linear_attention", "full_attention", "linear_attention"]);
    let respelled = granite()
        .with("layer_types", kinds)
        .with("time_step_limit", json!([0.0, { "__float__": "Infinity" }]));
    assert_eq!(described(granite()), described(respelled));

    let kimi = || shape("kimi-linear-mini").unwrap();
    let kinds = json!(["linear_attention", "full_attention", "linear_attention", "full_attention"]);
    let mut respelled = kimi().with("layer_types", kinds);
    for (key, value) in [
        ("linear_num_heads", json!(4)),
        ("linear_head_dim", json!(16)),
        ("linear_conv_kernel_dim", json!(4)),
        ("linear_attn_config", Value::Null),
        ("num_experts", Value::Null),
        ("num_local_experts", json!(8)),
        ("num_experts_per_token", Value::Null),
        ("num_experts_per_tok", json!(3)),
        ("model_max_length", Value::Null),
        ("max_position_embeddings", json!(4096)),
    ] {
        respelled = respelled.with(key, value);
    }
    assert_eq!(described(kimi()), described(respelled));
}

#[test]
fn published_shapes_have_their_published_size() {
    for (name, millions) in [
        ("granite-4.0-h-micro", 3_191),
        ("granite-4.0-h-tiny", 6_939),
        ("granite-4.0-h-small", 32_207),
        ("kimi-linear-48b-a3b", 49_123),
    ] {
        let architecture = Architecture::of(&shape(name).unwrap()).unwrap();
        assert_eq!((architecture.params.count() + 500_000) / 1_000_000, millions, "{name}");
    }
    let kimi = Architecture::of(&shape("kimi-linear-48b-a3b").unwrap()).unwrap();
    assert_eq!(kimi.params.iter().count(), 20_493);
    // "48B-A3B": three billion of the weights are active.
    assert_eq!((kimi.weights_per_token() + 500_000_000) / 1_000_000_000, 3);
}
