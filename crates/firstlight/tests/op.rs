//! `firstlight op`: input and output tensors, and an error for each invalid input.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod support;

use half::bf16;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use std::path::{Path, PathBuf};
use support::{expect, json, refuses};
use tempfile::tempdir;

/// A safetensors file of f32 tensors, except `cu_seqlens`, which is written as 64-bit integers as frameworks do.
fn write(path: &Path, tensors: &[(&str, &[usize], &[f32])]) {
    let bytes = |name: &str, values: &[f32]| -> Vec<u8> {
        if name == "cu_seqlens" {
            values.iter().flat_map(|value| (*value as i64).to_le_bytes()).collect()
        } else {
            values.iter().flat_map(|value| value.to_le_bytes()).collect()
        }
    };
    let raw: Vec<_> =
        tensors.iter().map(|(name, shape, values)| (*name, *shape, bytes(name, values))).collect();
    let views: Vec<_> = raw
        .iter()
        .map(|(name, shape, data)| {
            let dtype = if *name == "cu_seqlens" { Dtype::I64 } else { Dtype::F32 };
            (*name, TensorView::new(dtype, shape.to_vec(), data).unwrap())
        })
        .collect();
    std::fs::write(path, serialize(views, None).unwrap()).unwrap();
}

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect()
}

fn read(path: &Path, name: &str) -> (Vec<usize>, Vec<f64>) {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor(name).unwrap();
    let data = tensor.data();
    let values = match tensor.dtype() {
        Dtype::F32 => {
            data.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
        }
        Dtype::F64 => data.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect(),
        Dtype::BF16 => {
            data.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f64()).collect()
        }
        other => panic!("{other:?}"),
    };
    (tensor.shape().to_vec(), values)
}

fn attention(folder: &Path) -> PathBuf {
    let path = folder.join("in.safetensors");
    let (q, kv) = (values(3 * 2 * 8), values(5 * 8));
    write(&path, &[("q", &[1, 3, 2, 8], &q), ("k", &[1, 5, 1, 8], &kv), ("v", &[1, 5, 1, 8], &kv)]);
    path
}

#[test]
fn results_do_not_overwrite_inputs() {
    let folder = tempdir().unwrap();
    let input = attention(folder.path());
    let before = std::fs::read(&input).unwrap();
    for output in ["in.safetensors", "./in.safetensors"] {
        let arguments = ["op", "attention", "in.safetensors", "-o", output];
        refuses(folder.path(), &arguments, &["would overwrite the input in.safetensors"]);
    }
    assert_eq!(std::fs::read(&input).unwrap(), before);
    let absent = ["op", "attention", "in.safetensors", "-o", "absent/out.safetensors"];
    refuses(folder.path(), &absent, &["absent/out.safetensors", "there is no folder absent"]);
}

#[test]
#[cfg(target_os = "linux")] // The stand-in for a GPU is found by LD_LIBRARY_PATH.
fn op_without_gpu_kernel_falls_back_to_cpu() {
    let folder = tempdir().unwrap();
    attention(folder.path());
    let line = ["op", "attention", "in.safetensors", "-o", "out.safetensors", "--json"];
    let run = |more: &[&str]| {
        let arguments = [&line[..], more].concat();
        let output = support::fake_driver::with_gpu(folder.path(), &arguments, &[]).output();
        let output = output.unwrap();
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (document, output.status.code())
    };
    // The tensors are float32, for which there is no GPU kernel.
    let (ran, status) = run(&[]);
    assert_eq!((ran["device"]["backend"].as_str(), status), (Some("cpu"), Some(0)), "{ran}");
    assert_eq!(ran["device"]["unused_gpu"], "stand-in");
    assert!(ran["device"]["why"].as_str().unwrap().contains("f32"), "{ran}");
    let (refused, status) = run(&["--backend", "cuda"]);
    assert_eq!(status, Some(2), "{refused}");
    assert!(refused["error"].as_str().unwrap().contains("f32"), "{refused}");
}

#[test]
fn op_matches_its_float64_reference() {
    let folder = tempdir().unwrap();
    attention(folder.path());
    let common =
        ["op", "attention", "in.safetensors", "--set", "causal=true", "--set", "scale=0.25", "-o"];
    let ran = json(folder.path(), &[&common[..], &["fast.safetensors"]].concat(), 0);
    assert_eq!(ran["op"], "attention");
    assert!(ran["launches"].as_u64().unwrap() > 0, "{ran}");
    assert!(!ran["refused"].as_array().unwrap().is_empty(), "{ran}");
    expect(folder.path(), &[&common[..], &["exact.safetensors", "--reference"]].concat(), 0);
    for name in ["o", "lse"] {
        let (shape, fast) = read(&folder.path().join("fast.safetensors"), name);
        let (exact_shape, exact) = read(&folder.path().join("exact.safetensors"), name);
        assert_eq!(shape, exact_shape);
        for (fast, exact) in fast.iter().zip(&exact) {
            assert!((fast - exact).abs() < 1e-5, "{name}: {fast} and {exact}");
        }
    }
}

#[test]
fn packed_sequences_with_64_bit_offsets_work() {
    let folder = tempdir().unwrap();
    let x = values(6 * 4);
    let path = folder.path().join("in.safetensors");
    write(
        &path,
        &[
            ("x", &[6, 4], &x),
            ("weight", &[4, 2], &values(8)),
            ("cu_seqlens", &[4], &[0.0, 2.0, 2.0, 6.0]),
        ],
    );
    let ran = json(folder.path(), &["op", "conv1d", "in.safetensors", "-o", "out.safetensors"], 0);
    assert_eq!(ran["outputs"]["o"]["shape"], serde_json::json!([6, 4]));
}

#[test]
fn errors_name_tensor_and_expected_value() {
    let folder = tempdir().unwrap();
    let check = |tensors: &[(&str, &[usize], &[f32])], extra: &[&str], words: &[&str]| {
        write(&folder.path().join("bad.safetensors"), tensors);
        let arguments =
            [&["op", "attention", "bad.safetensors", "-o", "out.safetensors"], extra].concat();
        let (_, err) = expect(folder.path(), &arguments, 2);
        for word in words {
            assert!(err.contains(word), "no `{word}` in {err}");
        }
        assert!(!folder.path().join("out.safetensors").exists(), "half-written output");
    };
    let (one, two) = (values(8), values(16));
    let q: (&str, &[usize], &[f32]) = ("q", &[1, 1, 1, 8], &one);
    let k: (&str, &[usize], &[f32]) = ("k", &[1, 2, 1, 8], &two);
    let v: (&str, &[usize], &[f32]) = ("v", &[1, 2, 1, 8], &two);
    check(&[q, k], &[], &["`v`", "missing"]);
    check(&[q, k, v, ("values", &[1], &[0.0])], &[], &["`values`", "hint:"]);
    check(&[q, k, ("v", &[1, 2, 2, 4], &two)], &[], &["`v`", "[1, 2, 2, 4]", "wanted"]);
    check(&[("q", &[8], &one), k, v], &[], &["`q`", "[8]", "4 dimensions"]);
    let mut poisoned = two.clone();
    poisoned[5] = f32::NAN;
    check(&[q, ("k", &[1, 2, 1, 8], &poisoned), v], &[], &["`k`", "NaN at element 5"]);
    check(&[q, k, v], &["--set", "causal=perhaps"], &["`causal`", "perhaps", "true or false"]);
    check(&[q, k, v], &["--set", "casual=true"], &["`casual`", "hint:", "causal"]);
    check(&[q, k, v], &["--set", "causal"], &["causal", "no value", "hint:"]);
    check(&[q, k, v], &["--variant", "warp9"], &["warp9", "no such variant"]);
}

#[test]
fn unusable_file_is_one_line_error_with_hint() {
    let folder = tempdir().unwrap();
    let whole = std::fs::read(attention(folder.path())).unwrap();
    let op = |file: &'static str| ["op", "attention", file, "-o", "out.safetensors"];
    refuses(folder.path(), &op("absent.safetensors"), &["absent.safetensors"]);
    std::fs::write(folder.path().join("cut.safetensors"), &whole[..whole.len() - 10]).unwrap();
    refuses(folder.path(), &op("cut.safetensors"), &["cut.safetensors", "truncated"]);
    std::fs::write(folder.path().join("text.safetensors"), "these are no tensors at all").unwrap();
    refuses(folder.path(), &op("text.safetensors"), &["text.safetensors"]);
    refuses(
        folder.path(),
        &["op", "atention", "in.safetensors", "-o", "out.safetensors"],
        &["atention"],
    );
    assert!(!folder.path().join("out.safetensors").exists());
}

#[test]
#[cfg(target_os = "linux")]
fn full_disk_is_one_line_error_and_leaves_nothing() {
    let folder = tempdir().unwrap();
    attention(folder.path());
    let (_, err) =
        expect(folder.path(), &["op", "attention", "in.safetensors", "-o", "/dev/full"], 2);
    assert!(err.contains("/dev/full") && err.contains("No space left"), "{err}");
    let (_, err) = expect(
        folder.path(),
        &["op", "attention", "in.safetensors", "-o", "absent/out.safetensors"],
        2,
    );
    assert!(err.contains("absent/out.safetensors"), "{err}");
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["in.safetensors"]);
}

#[test]
fn op_without_file_prints_its_table() {
    let folder = tempdir().unwrap();
    for op in ops::OPS {
        let name = op.spec().name;
        let table = json(folder.path(), &["op", name], 0);
        assert_eq!(table["inputs"].as_array().unwrap().len(), op.spec().inputs.len(), "{name}");
        let (text, _) = expect(folder.path(), &["op", name], 0);
        assert!(op.spec().settings.iter().all(|setting| text.contains(setting.name)), "{text}");
    }
}
