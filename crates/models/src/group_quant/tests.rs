//! Compares integer weights with what the libraries of their formats read from files that they wrote.

use crate::Checkpoint;
use crate::packers::{folders, hold, written};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView};

/// The bits of values rounded to another's type.
fn bits(values: &[f32], dtype: Dtype) -> Vec<u8> {
    let values = values.iter();
    match dtype {
        Dtype::BF16 => values.flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
        Dtype::F16 => values.flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        _ => values.flat_map(|x| x.to_le_bytes()).collect(),
    }
}

pub(crate) fn check(name: &str, checkpoint: &Checkpoint, want: &TensorView<'_>) {
    let len = want.shape().iter().product();
    let weight = format!("{name}.weight");
    let all = checkpoint.read::<f32>(&weight, 0, len).unwrap();
    let (size, bytes) = (want.dtype().bitsize() / 8, want.data());
    let differ =
        bits(&all, want.dtype()).chunks(size).zip(bytes.chunks(size)).position(|(a, b)| a != b);
    assert_eq!(differ, None, "{name}: an element of {:?}", want.shape());
    // Read from the middle, at unaligned positions.
    let (first, count) = (len / 3 + 1, len / 2);
    let some = checkpoint.read::<f32>(&weight, first, count).unwrap();
    assert_eq!(some, all[first..first + count], "{name}");
}

/// Needs the libraries, which `cargo xtask test` installs; otherwise the test says that it was skipped.
#[test]
fn packed_weights_match_their_libraries() {
    let Some(folder) = written(include_str!("packers.py")) else { return };
    let formats = folders(&folder);
    let tensors: usize = formats.iter().map(|(_, path)| hold(path, check)).sum();
    // Every packing was covered.
    for format in ["compressed-tensors", "gptq-4-32-True-False", "gptq-8-64-False-True", "awq-32"] {
        assert!(formats.iter().any(|(found, _)| found == format), "{formats:?}");
    }
    assert_eq!((formats.len(), tensors), (9, 39), "{formats:?}");
}
