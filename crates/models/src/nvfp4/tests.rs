use super::*;
use crate::Checkpoint;
use crate::packers::{folders, hold, written};
use safetensors::tensor::{TensorView, serialize_to_file};
use std::path::Path;

/// Needs compressed-tensors, which `cargo xtask test` installs; otherwise the test says that it was skipped.
#[test]
fn nvfp4_weights_match_compressed_tensors() {
    let Some(folder) = written(include_str!("writer.py")) else { return };
    let formats = folders(&folder);
    assert_eq!(formats.len(), 2);
    for (_, path) in formats {
        let check = |name: &str, checkpoint: &Checkpoint, want: &TensorView<'_>| {
            let len: usize = want.shape().iter().product();
            for (first, len) in [(0, len), (len / 3 + 1, len / 2), (len - 1, 1)] {
                let got = checkpoint.read::<f32>(name, first, len).unwrap();
                let got: Vec<u8> = got.into_iter().flat_map(f32::to_le_bytes).collect();
                assert!(got == want.data()[4 * first..][..4 * len], "{name} from {first}");
            }
        };
        assert_eq!(hold(&path, check), 4);
    }
}

const MODULE: &str = "model.layers.0.mlp.up_proj";

/// Writes a weight of 3 rows of 2 groups in modelopt's layout.
fn write(folder: &Path, scales: [usize; 2], factor: &[f32]) {
    let packed: Vec<u8> = (0..3 * 16).map(|at| (at * 37 % 256) as u8).collect();
    let of_groups: Vec<u8> = (0..scales[0] * scales[1]).map(|at| (at * 21 + 8) as u8).collect();
    let factor: Vec<u8> = factor.iter().flat_map(|factor| factor.to_le_bytes()).collect();
    let view =
        |dtype, shape: &[usize], bytes| TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
    let tensors = [
        (format!("{MODULE}.weight"), view(Dtype::U8, &[3, 16], &packed)),
        (format!("{MODULE}.weight_scale"), view(Dtype::F8_E4M3, &scales, &of_groups)),
        (format!("{MODULE}.weight_scale_2"), view(Dtype::F32, &[factor.len() / 4], &factor)),
    ];
    serialize_to_file(tensors, None, &folder.join("model.safetensors")).unwrap();
    let config = r#"{"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}"#;
    std::fs::write(folder.join("config.json"), config).unwrap();
}

#[test]
fn values_match_e2m1_times_both_scales() {
    let folder = tempfile::tempdir().unwrap();
    let factor = 0.001_234_568;
    write(folder.path(), [3, 2], &[factor]);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let got = checkpoint.read::<f32>(&format!("{MODULE}.weight"), 0, 96).unwrap();
    const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    for (at, got) in got.into_iter().enumerate() {
        let bits = (at / 2 * 37 % 256) >> (at % 2 * 4) & 15;
        let size = E2M1[bits & 7] * if bits & 8 == 0 { 1.0 } else { -1.0 };
        let scale = E4m3::from_bits((at / 16 * 21 + 8) as u8).to_f32() * factor;
        assert_eq!(got.to_bits(), (size * scale).to_bits(), "{at}");
    }
}

#[test]
fn malformed_scales_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (scales, factor, wanted) in [
        ([3, 1], &[1.0][..], "weight_scale` is F8_E4M3 [3, 1], expected [3, 2] in F8_E4M3"),
        ([3, 2], &[1.0, 1.0], "weight_scale_2` is F32 [2], expected one number in F32"),
    ] {
        write(folder.path(), scales, factor);
        let error = Checkpoint::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}
