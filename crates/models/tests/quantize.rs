//! Checkpoints quantized to float8 and integers: their values, and what is unchanged.
#![allow(clippy::unwrap_used)]

use models::{FileProgress, Model, QuantizedFormat, SynthOptions, quantize, shape, synth};
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use std::collections::BTreeMap;
use std::path::Path;

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn read(folder: &Path) -> Tensors {
    let mut tensors = Tensors::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "safetensors") {
            let bytes = std::fs::read(&path).unwrap();
            for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
                let all = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
                assert!(tensors.insert(name, all).is_none());
            }
        }
    }
    tensors
}

/// A value by E4M3's definition, and its distance to the next one.
fn number(bits: u8) -> (f64, f64) {
    let (e, m) = (i32::from(bits >> 3 & 15), f64::from(bits & 7));
    let step = 2f64.powi(e.max(1) - 10);
    let magnitude = if e == 0 { m * step } else { (8.0 + m) * step };
    (if bits >> 7 == 1 { -magnitude } else { magnitude }, step)
}

fn floats(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|x| f64::from(f32::from_le_bytes(*x))).collect()
}

fn halves(bytes: &[u8]) -> Vec<f64> {
    let wide = |x: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*x)) << 16);
    bytes.as_chunks().0.iter().map(|x| f64::from(wide(x))).collect()
}

#[test]
fn float8_weights_are_rounded_to_nearest_by_rows() {
    for name in ["granite-moe-mini", "llama-mini"] {
        let folder = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
        let options = SynthOptions { seed: 3, shard_bytes: 100_000, ..SynthOptions::default() };
        synth(shape(name).unwrap(), &from, &options).unwrap();
        let quantized =
            quantize(&from, &to, QuantizedFormat::Fp8, &FileProgress::default()).unwrap();
        let (before, after) = (read(&from), read(&to));
        let errors: BTreeMap<&str, f64> =
            quantized.tensors.iter().map(|of| (&*of.name, of.relative_error)).collect();
        for (name, (dtype, shape, bytes)) in &before {
            let (now, shape_now, bytes_now) = &after[name];
            assert_eq!(shape, shape_now, "{name}");
            let Some(error) = errors.get(&**name) else {
                assert_eq!((dtype, bytes), (now, bytes_now), "{name}");
                continue;
            };
            assert_eq!(*now, Dtype::F8_E4M3, "{name}");
            let (_, of_scales, scales) = &after[&format!("{name}_scale")];
            assert_eq!(of_scales[..], [&shape[..shape.len() - 1], &[1]].concat(), "{name}");
            let (weights, scales) = (halves(bytes), floats(scales));
            let (mut off, mut all) = (0.0, 0.0);
            let width = shape[shape.len() - 1];
            for (at, (weight, bits)) in weights.iter().zip(bytes_now).enumerate() {
                let (scale, (number, step)) = (scales[at / width], number(*bits));
                // Half a step, plus the error of dividing in float32.
                let distance = (weight - number * scale).abs();
                assert!(distance <= 0.500_01 * step * scale, "{name}: {weight} {bits:#x}");
                off += distance.powi(2);
                all += weight.powi(2);
            }
            assert!((error - (off / all).sqrt()).abs() < 1e-6, "{name}: {error}");
            // The relative error of normal weights with three and a half bits of precision.
            assert!((0.01..0.04).contains(error), "{name}: {error}");
            for (row, numbers) in bytes_now.chunks(width).enumerate() {
                let largest = numbers.iter().map(|bits| bits & 0x7f).max().unwrap();
                assert_eq!(largest, 0x7e, "{name}: row {row}");
            }
        }
        let routers = before.keys().filter(|name| name.contains("router"));
        assert!(routers.into_iter().all(|name| !errors.contains_key(&**name)));
        assert!(errors.len() > 10 && !errors.contains_key("model.embed_tokens.weight"));
        // The folder is a model with a complete index and a tokenizer, and is not quantized twice.
        let model = Model::read(&to).unwrap();
        let bytes = |all: &Tensors| all.values().map(|(.., bytes)| bytes.len() as u64).sum::<u64>();
        assert_eq!(quantized.bytes, [bytes(&before), bytes(&after)]);
        assert_eq!(model.checkpoint.bytes(), bytes(&after));
        assert_eq!(model.checkpoint.parameters(), model.architecture.params.count());
        assert!(to.join("tiktoken.model").exists());
        let again = quantize(
            &to,
            &folder.path().join("again"),
            QuantizedFormat::Fp8,
            &FileProgress::default(),
        );
        assert!(again.unwrap_err().to_string().contains("quantised already"));
        assert!(!folder.path().join("again").exists());
    }
}

#[test]
fn int_weights_are_rounded_to_nearest_by_groups() {
    for (name, to, bits) in [
        ("granite-moe-mini", QuantizedFormat::Int4, 4),
        ("llama-mini", QuantizedFormat::Int8, 8),
        ("qwen3-moe-mini", QuantizedFormat::Int4, 4),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let [from, into] = ["from", "to"].map(|name| folder.path().join(name));
        let options = SynthOptions { seed: 3, shard_bytes: 100_000, ..SynthOptions::default() };
        synth(shape(name).unwrap(), &from, &options).unwrap();
        let quantized = quantize(&from, &into, to, &FileProgress::default()).unwrap();
        let (before, after) = (read(&from), read(&into));
        let errors: BTreeMap<&str, f64> =
            quantized.tensors.iter().map(|of| (&*of.name, of.relative_error)).collect();
        for (name, (dtype, shape, bytes)) in &before {
            let Some(error) = errors.get(&**name) else {
                let (now, _, bytes_now) = &after[name];
                assert_eq!((dtype, bytes), (now, bytes_now), "{name}");
                continue;
            };
            assert!(!after.contains_key(name), "{name}");
            let module = name.strip_suffix(".weight").unwrap();
            let of = |end: &str| &after[&format!("{module}.weight_{end}")];
            let [columns, rows] = [shape[shape.len() - 1], shape.iter().rev().skip(1).product()];
            let sizes = of("shape").2.as_chunks().0.iter().map(|side| i64::from_le_bytes(*side));
            assert!(sizes.eq(shape.iter().map(|side| *side as i64)), "{name}");
            let (scales, packed) = (halves(&of("scale").2), &of("packed").2);
            let groups = scales.len() / rows;
            let group = columns / groups;
            assert!(group * groups == columns && (groups == 1 || group >= 32), "{name}");
            let row_bytes = columns.div_ceil(32 / bits) * 4;
            assert_eq!(packed.len(), rows * row_bytes, "{name}");
            let half = 2f64.powi(bits as i32 - 1);
            let (mut off, mut all) = (0.0, 0.0);
            for (at, weight) in halves(bytes).iter().enumerate() {
                let (row, k) = (at / columns, at % columns);
                let byte = packed[row * row_bytes + k * bits / 8];
                let number = if bits == 4 { byte >> (k % 2 * 4) & 15 } else { byte };
                let scale = scales[row * groups + k / group];
                let number = f64::from(number) - half;
                let distance = (weight - number * scale).abs();
                // Half a step, and one more at the end of the range that has one value less; scales have 8 bits.
                let end = if number == half - 1.0 { 0.51 + half / 256.0 } else { 0.500_01 };
                assert!(distance <= end * scale, "{name}: {weight} is {number} of {scale}");
                off += distance.powi(2);
                all += weight.powi(2);
            }
            assert!((error - (off / all).sqrt()).abs() < 1e-6, "{name}: {error}");
            let expected = if bits == 4 { 0.03..0.12 } else { 0.001..0.01 };
            assert!(expected.contains(error), "{name}: {error}");
        }
        assert!(errors.len() > 10 && !errors.contains_key("model.embed_tokens.weight"));
        assert!(
            errors.keys().all(|name| !name.contains("router") && !name.ends_with(".gate.weight"))
        );
        let model = Model::read(&into).unwrap();
        let bytes = |all: &Tensors| all.values().map(|(.., bytes)| bytes.len() as u64).sum::<u64>();
        assert_eq!(quantized.bytes, [bytes(&before), bytes(&after)]);
        assert_eq!(model.checkpoint.bytes(), bytes(&after));
        assert_eq!(model.checkpoint.parameters(), model.architecture.params.count());
        let again = quantize(&into, &folder.path().join("again"), to, &FileProgress::default());
        assert!(again.unwrap_err().to_string().contains("quantised already"));
    }
}

#[test]
fn missing_integer_tensors_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let config = QuantizedFormat::Int4.of(shape("llama-mini").unwrap()).unwrap();
    synth(config, folder.path(), &SynthOptions::default()).unwrap();
    let (path, whole) = (folder.path().join("model.safetensors"), read(folder.path()));
    let module = "model.layers.0.mlp.down_proj";
    let said = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = whole.clone();
        change(&mut tensors);
        let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        safetensors::tensor::serialize_to_file(views, None, &path).unwrap();
        Model::read(folder.path()).map(|_| ()).map_err(|error| error.to_string())
    };
    said(&|_| {}).unwrap();
    for end in ["scale", "shape"] {
        let name = format!("{module}.weight_{end}");
        let missing = said(&|tensors| drop(tensors.remove(&name))).unwrap_err();
        assert!(missing.contains(&format!("is packed without `{name}`")), "{missing}");
    }
    let short = said(&|tensors| {
        let (_, shape, bytes) = tensors.get_mut(&format!("{module}.weight_scale")).unwrap();
        shape[0] -= 1;
        bytes.truncate(shape[0] * shape[1] * 2);
    });
    assert!(short.unwrap_err().contains("expected a scale for each group of a row"));
    let other = said(&|tensors| {
        let sizes = tensors.get_mut(&format!("{module}.weight_shape")).unwrap();
        let sides =
            sizes.2.as_chunks::<8>().0.iter().map(|side| i64::from_le_bytes(*side) as usize);
        let [rows, columns] = sides.collect::<Vec<_>>()[..] else { panic!("{sizes:?}") };
        sizes.2 =
            [rows, columns - 1].iter().flat_map(|side| (*side as i64).to_le_bytes()).collect();
    });
    assert!(other.unwrap_err().contains("dequantizes to"), "a shape that the config does not want");
    // A group size that differs from the config.
    let ordered = said(&|tensors| {
        let columns = tensors[&format!("{module}.weight_packed")].1[1] * 8;
        let groups = (0..columns as i32).flat_map(|_| 77i32.to_le_bytes()).collect();
        tensors.insert(format!("{module}.weight_g_idx"), (Dtype::I32, vec![columns], groups));
    });
    assert!(ordered.unwrap_err().contains("expected groups below"));
}

#[test]
fn missing_scales_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let options = SynthOptions::default();
    synth(models::with_fp8_weights(shape("llama-mini").unwrap()), folder.path(), &options).unwrap();
    let path = folder.path().join("model.safetensors");
    let whole = read(folder.path());
    let scale = "model.layers.0.mlp.down_proj.weight_scale";
    let said = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = whole.clone();
        change(&mut tensors);
        let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        safetensors::tensor::serialize_to_file(views, None, &path).unwrap();
        Model::read(folder.path()).map(|_| ()).map_err(|error| error.to_string())
    };
    said(&|_| {}).unwrap();
    let missing = said(&|tensors| drop(tensors.remove(scale))).unwrap_err();
    assert!(
        missing.contains("is float8 without `model.layers.0.mlp.down_proj.weight_scale`"),
        "{missing}"
    );
    let short = said(&|tensors| {
        let (_, shape, bytes) = tensors.get_mut(scale).unwrap();
        shape[0] -= 1;
        bytes.truncate(shape[0] * 4);
    });
    assert!(short.unwrap_err().contains(scale));
    let infinite = said(&|tensors| {
        tensors.get_mut(scale).unwrap().2[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    });
    assert!(infinite.unwrap_err().contains("expected finite numbers"));
    // Activation scales are ignored.
    said(&|tensors| {
        let of = (Dtype::F32, vec![1], 1f32.to_le_bytes().to_vec());
        tensors.insert("model.layers.0.mlp.down_proj.input_scale".to_owned(), of);
    })
    .unwrap();
}
