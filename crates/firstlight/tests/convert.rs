//! `firstlight convert`: the printed tensor map, complete output files, and a full disk.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use std::fs;
#[cfg(target_os = "linux")]
use std::path::Path;
#[cfg(target_os = "linux")]
use support::command;
use support::{expect, json, refuses};
use tempfile::tempdir;

const TO_FLA: [&str; 5] = ["convert", "hf", "fla", "--to", "fla-kda"];

/// A model in the folder `hf`.
fn synthesized_model() -> tempfile::TempDir {
    let folder = tempdir().unwrap();
    json(folder.path(), &["synth", "kimi-linear-mini", "hf"], 0);
    folder
}

#[test]
fn prints_tensor_map_and_verifies_round_trip() {
    let folder = synthesized_model();
    let here = folder.path();
    let map = json(here, &["convert", "hf", "--to", "fla-kda", "--show-map"], 0);
    let (tensors, zeros) = (map["tensors"].as_array().unwrap(), map["zeros"].as_array().unwrap());
    assert_eq!((tensors.len(), zeros.len()), (141, 2));
    let (shown, _) = expect(here, &["convert", "hf", "--to", "fla-kda", "--show-map"], 0);
    assert_eq!(shown.lines().count(), 143);
    let layer = "model.layers.0.self_attn";
    for line in [
        format!("{layer}.q_proj.weight [64, 64]"),
        format!("{layer}.A_log [1, 1, 4, 1] -> [4]"),
        format!("{layer}.f_a_proj.weight -> {layer}.f_proj.0.weight [16, 64]"),
        format!("{layer}.g_proj.1.bias [64] is added, all zeros"),
    ] {
        assert!(shown.lines().any(|shown| shown == line), "no `{line}` in {shown}");
    }
    assert!(!here.join("fla").exists());

    let (said, _) = expect(here, &TO_FLA, 0);
    let any = "model.layers.N.self_attn";
    for words in [
        "131 tensors keep their name and shape; the others:".to_owned(),
        format!("{any}.g_b_proj.weight [64, 16] -> {any}.g_proj.1.weight [64, 16] in 2 layers"),
        "4 files in fla, ".to_owned(),
    ] {
        assert!(said.contains(&words), "no `{words}` in {said}");
    }
    let (said, _) = expect(here, &[&TO_FLA[..], &["--resume"]].concat(), 0);
    assert!(said.contains("4 of them already existed, verified by their hashes"), "{said}");
    let back = json(here, &["convert", "fla", "back", "--to", "hf"], 0);
    assert_eq!((&back["as_published"], &back["files"]), (&true.into(), &4.into()));
    for file in ["model.safetensors", "config.json", "tiktoken.model"] {
        let [was, is] = ["hf", "back"].map(|model| fs::read(here.join(model).join(file)).unwrap());
        assert!(was == is, "{file} differs");
    }
    refuses(here, &TO_FLA, &["fla holds a conversion already"]);
    refuses(here, &["convert", "hf", "n", "--to", "hf"], &["the weights of hf are hf already"]);
}

/// Runs the command with a file size limit of `blocks` blocks of 512 bytes, which simulates a full disk.
#[cfg(target_os = "linux")]
fn with_file_size_limit(folder: &Path, blocks: usize, arguments: &[&str]) -> (Option<i32>, String) {
    let ours = command(folder, arguments);
    let mut shell = std::process::Command::new("sh");
    // A write beyond the limit is then an error and does not kill the process.
    let line = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    shell.current_dir(folder).args(["-c", &line]).arg(ours.get_program()).args(ours.get_args());
    let output = shell.output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_leaves_no_truncated_shard() {
    let folder = synthesized_model();
    let here = folder.path();
    let whole = fs::metadata(here.join("hf/model.safetensors")).unwrap().len() as usize;
    // The limits are 20 KiB, half of the weights and almost all of them.
    for blocks in [40, whole / 1024, whole / 512] {
        let (code, error) = with_file_size_limit(here, blocks, &TO_FLA);
        assert_eq!(code, Some(2), "{error}");
        assert!(error.starts_with("error: fla/model.safetensors: File too large"), "{error}");
        assert!(error.contains(
            "\nhint: files under their final names are complete; continue with --resume"
        ));
        let mut left: Vec<_> = fs::read_dir(here.join("fla"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["firstlight-convert.json"]);
        refuses(here, &["logits", "fla", "--ids", "1", "-o", "o"], &["fla/config.json"]);
        fs::remove_dir_all(here.join("fla")).unwrap();
    }
    with_file_size_limit(here, whole / 1024, &TO_FLA);
    let ended = json(here, &[&TO_FLA[..], &["--resume"]].concat(), 0);
    assert_eq!(ended["taken_up"], 0);
    let back = json(here, &["convert", "fla", "back", "--to", "hf"], 0);
    assert_eq!(back["as_published"], true);
}
