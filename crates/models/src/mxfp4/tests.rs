use super::*;
use crate::Checkpoint;
use crate::packers::{folders, hold, written};
use half::bf16;
use safetensors::tensor::{TensorView, serialize_to_file};
use std::path::Path;

/// Needs transformers, which `cargo xtask test` installs; otherwise the test says that it was skipped.
#[test]
fn mxfp4_weights_match_transformers() {
    let Some(folder) = written(include_str!("writer.py")) else { return };
    let formats = folders(&folder);
    formats.iter().for_each(|(_, path)| assert!(hold(path, check) > 0));
    assert!(formats.iter().any(|(found, _)| found == "transformers"), "{formats:?}");
}

/// Compares values with expected bits of their type, also when reading from the middle.
fn check(name: &str, checkpoint: &Checkpoint, want: &TensorView<'_>) {
    let len: usize = want.shape().iter().product();
    let bits = |first: usize, len: usize| -> Vec<u8> {
        let values = checkpoint.values(name).unwrap();
        match want.dtype() {
            Dtype::BF16 => {
                let values = values.read::<bf16>(first, len).unwrap();
                values.into_iter().flat_map(bf16::to_le_bytes).collect()
            }
            _ => {
                let values = values.read::<f32>(first, len).unwrap();
                values.into_iter().flat_map(f32::to_le_bytes).collect()
            }
        }
    };
    let size = want.data().len() / len;
    for (first, len) in [(0, len), (len / 3 + 1, len / 2), (len - 1, 1)] {
        let (got, want) = (bits(first, len), &want.data()[first * size..][..len * size]);
        let differ = got.chunks(size).zip(want.chunks(size)).position(|(a, b)| a != b);
        assert_eq!(differ, None, "{name} from {first}");
    }
}

/// A checkpoint of one weight, and its values by definition: a sign, two exponent bits and one mantissa bit, times a
/// power of two.
fn drawn(
    folder: &Path,
    shape: [usize; 3],
    of_group: impl Fn(usize) -> u8,
) -> (Checkpoint, Vec<f64>) {
    let [matrices, rows, groups] = shape;
    let count = matrices * rows * groups;
    let blocks: Vec<u8> = (0..count * 16).map(|at| (at * 151 % 256) as u8).collect();
    let scales: Vec<u8> = (0..count).map(of_group).collect();
    let e2m1 = |bits: u8| {
        let (exponent, last) = (i32::from(bits >> 1 & 3), f64::from(bits & 1));
        let size = match exponent {
            0 => last / 2.0,
            _ => 2f64.powi(exponent - 1) * (1.0 + last / 2.0),
        };
        if bits & 8 == 0 { size } else { -size }
    };
    let value = |at: usize| {
        let bits = blocks[at / 2] >> (at % 2 * 4) & 15;
        e2m1(bits) * 2f64.powi(i32::from(scales[at / GROUP]) - 127)
    };
    let values = (0..count * GROUP).map(value).collect();
    write(folder, [(shape, &blocks), (shape, &scales)]);
    (Checkpoint::open(folder).unwrap(), values)
}

const NAME: &str = "model.layers.0.mlp.experts.gate_up_proj";

fn write(folder: &Path, [(blocks, bytes), (scales, of_scales)]: [([usize; 3], &[u8]); 2]) {
    let [a, b, c] = blocks;
    let tensors = [
        (format!("{NAME}_blocks"), TensorView::new(Dtype::U8, vec![a, b, c, 16], bytes).unwrap()),
        (format!("{NAME}_scales"), TensorView::new(Dtype::U8, scales.to_vec(), of_scales).unwrap()),
    ];
    serialize_to_file(tensors, None, &folder.join("model.safetensors")).unwrap();
    let config = r#"{"quantization_config": {"quant_method": "mxfp4"}}"#;
    std::fs::write(folder.join("config.json"), config).unwrap();
}

#[test]
fn dequantized_values_match_e2m1_times_scale() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoint, want) = drawn(folder.path(), [3, 17, 5], |at| (at % 255) as u8);
    let got = checkpoint.read::<f32>(NAME, 0, want.len()).unwrap();
    // Both overflow to infinity beyond float32's range.
    let want: Vec<u32> = want.iter().map(|value| (*value as f32).to_bits()).collect();
    assert_eq!(got.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), want);
    let some = checkpoint.read::<f32>(NAME, 77, 1001).unwrap();
    assert_eq!(some, got[77..1078]);
    // The integers and scales give the same values, except for the signs of zeros.
    let values = checkpoint.integers(NAME).unwrap();
    let (mut numbers, mut scales) = (vec![0i8; got.len()], vec![0f32; 3 * 17 * 5]);
    values.numbers(0..51, &mut numbers).unwrap();
    values.scales_and_zeros(0..51, &mut scales, &mut []).unwrap();
    for (at, value) in got.iter().enumerate() {
        assert_eq!(f32::from(numbers[at]) * scales[at / GROUP], *value, "{at}");
    }
    assert!((0..=254).all(|bits| scale_bits(scale(bits)) == bits));
    let all: Vec<i8> = TWICE.iter().flat_map(|a| TWICE.iter().flat_map(|b| [*a, *b])).collect();
    let unpacked = pack(&all).into_iter().flat_map(|byte| [byte & 15, byte >> 4]);
    assert!(unpacked.map(|bits| TWICE[usize::from(bits)]).eq(all.iter().copied()));
}

#[test]
fn rows_within_float8_range_convert_exactly() {
    // The limits of float8's range, relative to the smallest and the largest scale.
    for first in [0, 100, 240] {
        let folder = tempfile::tempdir().unwrap();
        let of_group = |at: usize| first + (at * 7 % 15) as u8;
        let (checkpoint, want) = drawn(folder.path(), [2, 9, 15], of_group);
        let values = checkpoint.integers(NAME).unwrap();
        let scales = values.float8_scales(3..18).unwrap().unwrap();
        let mut bits = vec![0u8; 15 * 15 * GROUP];
        values.float8(3..18, &scales, &mut bits).unwrap();
        let stands = bits.iter().enumerate().map(|(at, bits)| {
            f64::from(E4m3::from_bits(*bits).to_f32()) * f64::from(scales[at / (15 * GROUP)])
        });
        assert!(stands.eq(want[3 * 15 * GROUP..].iter().copied()), "from {first}");
    }
    let folder = tempfile::tempdir().unwrap();
    let (checkpoint, _) = drawn(folder.path(), [1, 2, 2], |at| if at == 3 { 115 } else { 100 });
    let values = checkpoint.integers(NAME).unwrap();
    assert!(values.float8_scales(0..1).unwrap().is_some());
    assert!(values.float8_scales(0..2).unwrap().is_none());
}

#[test]
fn zero_groups_accept_any_scale() {
    let folder = tempfile::tempdir().unwrap();
    let mut blocks = vec![0x71u8; 3 * 16];
    blocks[16..32].fill(0x80);
    write(folder.path(), [([1, 1, 3], &blocks), ([1, 1, 3], &[120, 0, 125])]);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let values = checkpoint.integers(NAME).unwrap();
    let scales = values.float8_scales(0..1).unwrap().unwrap();
    let mut bits = [7u8; 96];
    values.float8(0..1, &scales, &mut bits).unwrap();
    let value = |at: usize| E4m3::from_bits(bits[at]).to_f32() * scales[0];
    let power = |by: i32| 2f32.powi(by);
    assert_eq!(
        [0, 1, 32, 33, 64, 65].map(value),
        [power(-8), 6.0 * power(-7), 0.0, 0.0, power(-3), 6.0 * power(-2)]
    );
}

#[test]
fn rejects_wrong_shapes_and_nan_scales() {
    let (one, numbers) = ([1, 2, 3], vec![0u8; 96]);
    for (scales, of_scales, wanted) in [
        ([1, 2, 2], vec![1u8; 4], "_scales` is U8 [1, 2, 2], expected [1, 2, 3] in U8"),
        ([1, 2, 3], vec![1, 1, 255, 1, 1, 1], "is NaN at element 64"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), [(one, &numbers), (scales, &of_scales)]);
        let read = Checkpoint::open(folder.path())
            .and_then(|checkpoint| checkpoint.read::<f32>(NAME, 0, 192));
        let error = read.unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}
