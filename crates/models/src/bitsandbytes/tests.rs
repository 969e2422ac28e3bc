//! Compares weights with what bitsandbytes reads from checkpoints that it wrote.

use super::*;
use crate::Checkpoint;
use crate::group_quant::tests::check;
use crate::packers::{hold, written};
use safetensors::tensor::{TensorView, serialize_to_file};
use std::path::Path;

/// Needs bitsandbytes, which `cargo xtask test` installs; otherwise the test says that it was skipped.
#[test]
fn bitsandbytes_weights_match_the_library() {
    let Some(folder) = written(include_str!("writer.py")) else { return };
    for (name, tensors) in [("four", 8), ("eight", 1)] {
        assert_eq!(hold(&folder.path().join(name), check), tensors, "{name}");
    }
}

/// A checkpoint of one 4-bit weight `[3, 5]` in blocks of 8, the second of which ends in the last row.
fn four(
    folder: &Path,
    state: &str,
    more: &[(&str, Dtype, Vec<u8>)],
) -> Result<Checkpoint, ModelError> {
    let le =
        |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    let table: Vec<f32> = (0..16).map(|at| at as f32 - 8.0).collect();
    let mut all = vec![
        ("w.weight", Dtype::U8, vec![0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xe0]),
        ("w.weight.quant_map", Dtype::F32, le(&table)),
        ("w.weight.absmax", Dtype::F32, le(&[2.0, -0.5])),
        ("w.weight.quant_state.bitsandbytes__nf4", Dtype::U8, state.as_bytes().to_vec()),
    ];
    for one in more {
        all.retain(|(name, ..)| *name != one.0);
        all.push(one.clone());
    }
    let views = all.iter().filter(|(.., data)| !data.is_empty()).map(|(name, dtype, data)| {
        let count = data.len() * 8 / dtype.bitsize();
        (*name, TensorView::new(*dtype, vec![count], data).unwrap())
    });
    serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
    Checkpoint::open(folder)
}

const STATE: &str =
    r#"{"quant_type": "nf4", "blocksize": 8, "shape": [3, 5], "dtype": "bfloat16"}"#;

#[test]
fn codebook_values_are_scaled_by_block() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = four(folder.path(), STATE, &[]).unwrap();
    let number = |at: usize| (at as f32 - 8.0) * if at < 8 { 2.0 } else { -0.5 };
    let want: Vec<f32> = (0..15).map(number).collect();
    assert_eq!(checkpoint.read::<f32>("w.weight", 0, 15).unwrap(), want);
    assert_eq!(checkpoint.read::<f32>("w.weight", 7, 3).unwrap(), want[7..10]);
    assert!(
        checkpoint
            .read::<f32>("w.weight", 14, 2)
            .unwrap_err()
            .to_string()
            .contains("dequantizes to [3, 5]")
    );
    // Doubly quantized scales.
    let nested = STATE.replace('}', r#", "nested_blocksize": 256, "nested_offset": 0.25}"#);
    let le =
        |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    let table: Vec<f32> = (0..256).map(|at| at as f32 / 64.0).collect();
    let more = [
        ("w.weight.absmax", Dtype::U8, vec![64, 32]),
        ("w.weight.nested_absmax", Dtype::F32, le(&[0.5])),
        ("w.weight.nested_quant_map", Dtype::F32, le(&table)),
    ];
    let checkpoint = four(folder.path(), &nested, &more).unwrap();
    let scaled = |at: usize| (at as f32 - 8.0) * if at < 8 { 0.75 } else { 0.5 };
    let want: Vec<f32> = (0..15).map(scaled).collect();
    assert_eq!(checkpoint.read::<f32>("w.weight", 0, 15).unwrap(), want);
    assert_eq!(checkpoint.parameters(), 15);
}

#[test]
fn incomplete_weights_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |state: &str, more: &[(&str, Dtype, Vec<u8>)], words: &str| {
        let error = four(folder.path(), state, more).unwrap_err().to_string();
        assert!(error.contains("tensor `w.weight`") && error.contains(words), "{error}");
    };
    refused("{", &[], "a state that is no JSON");
    refused("{}", &[], "without a shape");
    refused(&STATE.replace("[3, 5]", "[3, 7]"), &[], "another shape than [3, 7]");
    refused(
        STATE,
        &[("w.weight.quant_map", Dtype::F32, Vec::new())],
        "is packed without `w.weight.quant_map`",
    );
    refused(
        STATE,
        &[("w.weight.absmax", Dtype::F32, vec![0; 4])],
        "`absmax` of 4 bytes, expected 8",
    );
    refused(
        STATE,
        &[("w.weight.absmax", Dtype::U8, vec![0; 2])],
        "nested scales without a block's size",
    );
    refused(STATE, &[("w.weight.absmax", Dtype::F16, vec![0; 4])], "has scales in F16");
}
