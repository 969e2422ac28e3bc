//! Random models with integers packed as GPTQ and AWQ do, which only this test writes.

use models::{Config, SynthOptions, synth};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Value, json};
use std::path::Path;

/// Generates a model in compressed-tensors' packing and repacks it for the config's `quantization_config`.
pub(crate) fn draw(config: Config, quantised: &Value, folder: &Path, options: &SynthOptions) {
    let word = |key: &str| quantised[key].as_str().unwrap_or_default().to_owned();
    let bits = quantised["bits"].as_u64().unwrap() as usize;
    let awq = word("quant_method") == "awq";
    let packed = json!({
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": bits, "type": "int", "strategy": "group", "group_size": quantised["group_size"],
            "symmetric": quantised["sym"] == true}}},
        "ignore": ["lm_head", "re:.*router.*", "re:.*[.](gate|shared_expert_gate)$"],
    });
    let config = config.with("quantization_config", packed);
    // All in one file.
    synth(config, folder, &SynthOptions { shard_bytes: usize::MAX, ..*options }).unwrap();
    let path = folder.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut made: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for (name, view) in file.tensors() {
        let belongs = ["scale", "zero_point", "shape"];
        if belongs.iter().any(|end| name.ends_with(&format!(".weight_{end}"))) {
            continue;
        }
        let Some(module) = name.strip_suffix(".weight_packed") else {
            made.push((name, view.dtype(), view.shape().to_vec(), view.data().to_vec()));
            continue;
        };
        let scale = file.tensor(&format!("{module}.weight_scale")).unwrap();
        let zero = file.tensor(&format!("{module}.weight_zero_point")).ok();
        let [outputs, groups] = scale.shape()[..] else { panic!("{module}") };
        let in_word = 32 / bits;
        let columns = view.shape()[1] * in_word;
        let mask = (1u32 << bits) - 1;
        let at = |bytes: &[u8], word: usize, place: usize| {
            let word: [u8; 4] = bytes[4 * word..4 * word + 4].try_into().unwrap();
            u32::from_le_bytes(word) >> (place * bits) & mask
        };
        let number = |n: usize, k: usize| at(view.data(), (n * columns + k) / in_word, k % in_word);
        let zero = |g: usize, n: usize| match &zero {
            Some(zero) => at(zero.data(), n / in_word * groups + g, n % in_word),
            None => 1 << (bits - 1),
        };
        // The bits of `count` values in each word along one of two dimensions.
        let words = |count: usize, of: &dyn Fn(usize) -> u32| -> u32 {
            (0..count).fold(0, |word, at| word | of(at) << (at * bits))
        };
        let mut put = |end: &str, dtype, shape: [usize; 2], bytes: Vec<u8>| {
            let shape = shape.into_iter().filter(|side| *side > 0).collect();
            made.push((format!("{module}.{end}"), dtype, shape, bytes));
        };
        let le = |words: Vec<u32>| words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<_>>();
        let interleaved = [0, 2, 4, 6, 1, 3, 5, 7];
        let across = outputs / in_word;
        let [qweight, qzeros]: [Vec<u32>; 2] = if awq {
            let all = |rows: usize, of: &dyn Fn(usize, usize) -> u32| {
                let word = |at: usize| {
                    let (row, first) = (at / across, at % across * 8);
                    words(8, &|nibble| of(row, first + interleaved[nibble]))
                };
                (0..rows * across).map(word).collect()
            };
            [all(columns, &|k, n| number(n, k)), all(groups, &zero)]
        } else {
            let smaller = u32::from(quantised["checkpoint_format"] != "gptq_v2");
            let qweight = (0..columns / in_word * outputs).map(|at| {
                words(in_word, &|place| number(at % outputs, at / outputs * in_word + place))
            });
            let qzeros = (0..groups * across).map(|at| {
                let (g, first) = (at / across, at % across * in_word);
                words(in_word, &|place| zero(g, first + place).wrapping_sub(smaller) & mask)
            });
            [qweight.collect(), qzeros.collect()]
        };
        put(
            "qweight",
            Dtype::I32,
            [
                qweight.len() / if awq { across } else { outputs },
                if awq { across } else { outputs },
            ],
            le(qweight),
        );
        put("qzeros", Dtype::I32, [groups, across], le(qzeros));
        let scales = (0..groups * outputs).flat_map(|at| {
            let from = at % outputs * groups + at / outputs;
            // float16, like float32, represents bfloat16 values of this magnitude exactly.
            let wide = u32::from(u16::from_le_bytes(
                scale.data()[2 * from..2 * from + 2].try_into().unwrap(),
            ));
            (wide << 16).to_le_bytes()
        });
        put("scales", Dtype::F32, [groups, outputs], scales.collect());
        if !awq {
            // The order is arbitrary: values are random, whatever their group.
            let ordered = quantised["desc_act"] == true;
            let place = |k: usize| if ordered { (k * 7 + 3) % columns } else { k };
            let group = quantised["group_size"].as_u64().unwrap() as usize;
            let g_idx = (0..columns).map(|k| (place(k) / group) as u32);
            put("g_idx", Dtype::I32, [columns, 0], le(g_idx.collect()));
        }
    }
    let views = made.iter().map(|(name, dtype, shape, bytes)| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    serialize_to_file(views, None, &path).unwrap();
    let config_path = folder.join("config.json");
    let mut config: Value =
        serde_json::from_str(&std::fs::read_to_string(&config_path).unwrap()).unwrap();
    config["quantization_config"] = quantised.clone();
    std::fs::write(&config_path, config.to_string()).unwrap();
}
