//! A model in bitsandbytes' 8-bit format has the logits of its dequantized values.

use crate::subject::{Subject, advance, check, tokens};
use half::bf16;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Value, json};

#[test]
fn int8_logits_match_the_dequantized_model() {
    let subject = Subject::draw(("llama-mini", &[]));
    let tokens = tokens(2, 40);
    // The original files for the oracle, and rounded ones for the engine: values that are exact in both.
    let narrow = tempfile::tempdir().unwrap();
    let mut rounded = 0;
    for entry in std::fs::read_dir(subject.folder()).unwrap() {
        let path = entry.unwrap().path();
        let to = narrow.path().join(path.file_name().unwrap());
        let mut bytes = std::fs::read(&path).unwrap();
        if path.extension().is_none_or(|end| end != "safetensors") {
            std::fs::write(&to, bytes).unwrap();
            continue;
        }
        let (header, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let mut packed: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
        for (name, info) in metadata.tensors() {
            let range = info.data_offsets.0 + header + 8..info.data_offsets.1 + header + 8;
            let Some(module) = name.strip_suffix("_proj.weight") else {
                packed.push((name, info.dtype, info.shape.clone(), bytes[range].to_vec()));
                continue;
            };
            let (numbers, scales): (Vec<Vec<u8>>, Vec<[u8; 4]>) = bytes[range]
                .chunks_mut(2 * info.shape[1])
                .map(|row| {
                    let scale = 127.0 / 512.0;
                    let numbers = row.as_chunks_mut::<2>().0.iter_mut().map(|value| {
                        let number = (bf16::from_le_bytes(*value).to_f32() * 512.0)
                            .round()
                            .clamp(-127.0, 127.0);
                        *value = bf16::from_f32(number / 512.0).to_le_bytes();
                        (number as i8).cast_unsigned()
                    });
                    (numbers.collect(), f32::to_le_bytes(scale))
                })
                .unzip();
            rounded += 1;
            packed.push((
                format!("{module}_proj.SCB"),
                Dtype::F32,
                vec![scales.len()],
                scales.concat(),
            ));
            packed.push((name.clone(), Dtype::I8, info.shape.clone(), numbers.concat()));
        }
        let views = packed.iter().map(|(name, dtype, shape, data)| {
            (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
        });
        serialize_to_file(views, None, &to).unwrap();
        std::fs::write(&path, bytes).unwrap();
    }
    assert_eq!(rounded, 3 * 7);
    let config = narrow.path().join("config.json");
    let mut text: Value = serde_json::from_str(&std::fs::read_to_string(&config).unwrap()).unwrap();
    text["quantization_config"] = json!({
        "quant_method": "bitsandbytes", "load_in_8bit": true, "load_in_4bit": false,
        "llm_int8_skip_modules": null,
    });
    std::fs::write(&config, text.to_string()).unwrap();
    // The index does not list scales; without it all files of the folder are read.
    std::fs::remove_file(narrow.path().join("model.safetensors.index.json")).unwrap();
    let model = models::Model::read(narrow.path()).unwrap();
    assert_eq!(model.checkpoint.parameters(), model.architecture.params.count());
    let device = backends::open(facts::BackendKind::Cpu).unwrap();
    let capacity = models::Capacity { sequences: 1, tokens: 300 };
    let mut engine = models::open(model, device, models::Storage::F32, capacity).unwrap();
    let got = advance(&mut *engine, 0, &tokens, 17);
    check("llama-mini in 8 bits", &got, &subject.oracle().logits(&tokens));
}
