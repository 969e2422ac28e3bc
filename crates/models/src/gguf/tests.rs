//! Compares values read from GGUF files with gguf-py's.

use crate::packers::{folders, written};
use crate::{Checkpoint, Model};
use architectures::GgmlType;

/// The parameters of a file that correspond to its tensors one to one.
const TENSORS: &[(&str, &str)] = &[
    ("token_embd", "model.embed_tokens"),
    ("output", "lm_head"),
    ("blk.0.attn_q", "model.layers.0.self_attn.q_proj"),
    ("blk.0.attn_k", "model.layers.0.self_attn.k_proj"),
    ("blk.0.attn_v", "model.layers.0.self_attn.v_proj"),
    ("blk.0.attn_output", "model.layers.0.self_attn.o_proj"),
    ("blk.0.ffn_gate", "model.layers.0.mlp.gate_proj"),
    ("blk.0.ffn_up", "model.layers.0.mlp.up_proj"),
    ("blk.0.ffn_down", "model.layers.0.mlp.down_proj"),
];

fn check(checkpoint: &Checkpoint, name: &str, want: &[f32]) {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let all = checkpoint.read::<f32>(name, 0, want.len()).unwrap();
    assert_eq!(bits(&all), bits(want), "{name}");
    // Read from the middle, at unaligned positions.
    let (first, count) = (want.len() / 3 + 1, want.len() / 2);
    let some = checkpoint.read::<f32>(name, first, count).unwrap();
    assert_eq!(bits(&some), bits(&all[first..first + count]), "{name}");
    // Integer weights represent the same values, up to float32 rounding.
    let Some(integers) = checkpoint.integers(name) else { return };
    let (rows, groups) = (integers.of.rows, integers.of.groups());
    let mut numbers = vec![0i8; want.len()];
    let mut scales_and_zeros = vec![0f32; 2 * rows * groups];
    let (scales, zeros) = scales_and_zeros.split_at_mut(rows * groups);
    integers.numbers(0..rows, &mut numbers).unwrap();
    integers.scales_and_zeros(0..rows, scales, zeros).unwrap();
    let middle = 1i32 << (integers.of.bits - 1);
    let held = if integers.of.float { -12..13 } else { -middle..middle };
    for (at, (number, want)) in numbers.iter().zip(want).enumerate() {
        assert!(held.contains(&i32::from(*number)), "{name} {number}");
        let (row, column) = (at / integers.of.columns, at % integers.of.columns);
        let of = row * groups + column / integers.of.group;
        let (scale, zero) = (f64::from(scales[of]), f64::from(zeros[of]));
        let value = scale * (f64::from(*number) - zero);
        // The zero point was divided by the scale; its rounding error is relative to its size.
        let rounded = scale.abs() * (zero.abs() + 64.0) * 2.4e-7;
        assert!((value - f64::from(*want)).abs() <= rounded, "{name} {at}: {value} {want}");
    }
    // With offsets, as GPUs store them, the values are exact.
    if !integers.of.has_offsets() || integers.of.bits != 4 {
        return;
    }
    integers.offsets(0..rows, scales, zeros).unwrap();
    for (at, (number, want)) in numbers.iter().zip(want).enumerate() {
        let (row, column) = (at / integers.of.columns, at % integers.of.columns);
        let of = row * groups + column / integers.of.group;
        let value = scales[of] * f32::from(number + 8) - zeros[of];
        assert_eq!(value.to_bits(), want.to_bits(), "{name} {at}: {value} {want}");
    }
}

/// Needs gguf-py, which `cargo xtask test` installs; otherwise the test says that it was skipped.
#[test]
fn gguf_weights_match_gguf_py() {
    let Some(folder) = written(include_str!("writer.py")) else { return };
    let mut kinds = Vec::new();
    for (kind, path) in folders(&folder) {
        let model = Model::read(&path.join("model.gguf")).unwrap();
        for (tensor, name) in TENSORS {
            let bytes = std::fs::read(path.join(format!("{tensor}.f32"))).unwrap();
            let want: Vec<f32> =
                bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            let name = format!("{name}.weight");
            check(&model.checkpoint, &name, &want);
            let in_blocks = GgmlType::ALL.iter().any(|block| block.name() == kind);
            let kept = model.checkpoint.integers(&name).is_some();
            assert!(kind == "mixed" || kept == in_blocks, "{kind} {name}");
        }
        assert_eq!(model.checkpoint.parameters(), model.architecture.params.count());
        kinds.push(kind);
    }
    let blocks = GgmlType::ALL.iter().map(|block| block.name());
    let mut all: Vec<_> =
        ["BF16", "F16", "F32", "mixed", "scaled"].into_iter().chain(blocks).collect();
    all.sort_unstable();
    assert_eq!(kinds, all);
}
