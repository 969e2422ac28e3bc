//! Storage formats read from configs.

use super::*;
use crate::{UnexpandedWeights, shape};

/// The storage formats of a reduced Granite's parameters whose names have this suffix, in the order of layers.
fn stored(config: &str, name: &str) -> Result<Vec<StorageFormat>, String> {
    let config =
        shape("granite-moe-mini").unwrap().with(KEY, serde_json::from_str(config).unwrap());
    let architecture = Architecture::of(&config).map_err(|error| error.to_string())?;
    let named = architecture.params.iter().filter(|param| param.name.ends_with(name));
    Ok(named.map(|param| param.stored).collect())
}

fn group(weights: &str, rest: &str) -> String {
    format!(
        r#"{{"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups":
            {{"group_0": {{"targets": ["Linear"], "weights": {{{weights}}}}}}}{rest}}}"#
    )
}

const ROWS: &str = r#""num_bits": 8, "type": "float", "strategy": "channel""#;

#[test]
fn published_configs_say_which_weights_are_narrow() {
    let fp8 = |scales, suffix| StorageFormat::Fp8(Fp8 { scales, suffix });
    let (rows, blocks) = (fp8(Fp8Scales::Row, SCALE), fp8(Fp8Scales::Block, SCALE_INV));
    let ignoring = group(ROWS, r#", "ignore": ["lm_head", "re:.*block_sparse_moe.router"]"#);
    let inverse = r#"{"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [128, 128], "modules_to_not_convert": ["router", "model.layers.0.mamba"]}"#;
    for (config, name, wanted) in [
        (&*ignoring, "shared_mlp.input_linear.weight", rows),
        (&ignoring, "block_sparse_moe.input_linear.weight", rows),
        (&ignoring, "mamba.in_proj.weight", rows),
        (&ignoring, "router.layer.weight", StorageFormat::Wide),
        // Not linear modules, whatever a target says.
        (&ignoring, "embed_tokens.weight", StorageFormat::Wide),
        (&ignoring, "conv1d.weight", StorageFormat::Wide),
        (&ignoring, "A_log", StorageFormat::Wide),
        (inverse, "shared_mlp.input_linear.weight", blocks),
        (inverse, "layers.0.mamba.in_proj.weight", StorageFormat::Wide),
    ] {
        let found = stored(config, name).unwrap();
        assert!(!found.is_empty() && found.iter().all(|one| *one == wanted), "{name}: {found:?}");
    }
}

const FOUR: &str = r#""num_bits": 4, "type": "int", "strategy": "group", "group_size": 32"#;

fn packed(weights: &str) -> String {
    group(weights, "").replace("float-quantized", "pack-quantized")
}

#[test]
fn integers_are_read_of_each_method_that_packs_them() {
    let int = |bits, group, symmetric, act_order, packing| {
        StorageFormat::Int(GroupQuantization { bits, group, symmetric, act_order, packing })
    };
    let (rows, first) = (Packing::Rows, Packing::Gptq { zeros_minus_one: true });
    let act_order = packed(&format!(r#"{FOUR}, "symmetric": false, "actorder": "group""#));
    let eight =
        packed(r#""num_bits": 8, "type": "int", "strategy": "channel", "actorder": "weight""#);
    // Names take precedence over expressions, and expressions over targets that match all, in any order.
    let mixed = format!(
        r#"{{"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": {{
            "a": {{"targets": ["Linear"], "format": "float-quantized", "weights": {{{ROWS}}}}},
            "b": {{"targets": ["re:.*in_proj"], "format": "pack-quantized", "weights": {{{FOUR}}}}},
            "c": {{"targets": ["model.layers.0.mamba.in_proj"], "weights": {{"num_bits": 8,
                "type": "int", "strategy": "channel"}}}}}}}}"#
    );
    let gptq = r#"{"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": true, "sym": false, "dynamic": {
        "-:.*out_proj": {}, "+:.*layers.0.*": {"bits": 8, "group_size": 32}, ".*layers.*": {"group_size": -1}}}"#;
    let second = r#"{"quant_method": "gptq", "checkpoint_format": "gptq_v2", "bits": 8}"#;
    let awq = r#"{"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": true, "version": "GEMM",
        "modules_to_not_convert": ["mlp"]}"#;
    let bnb = r#"{"quant_method": "bitsandbytes", "load_in_4bit": true, "load_in_8bit": false,
        "bnb_4bit_quant_type": "nf4", "llm_int8_skip_modules": ["mamba"]}"#;
    let gguf = r#"{"quant_method": "gguf", "types": {"model.layers.1.self_attn.q_proj.weight": "Q4_K",
        "model.embed_tokens.weight": "Q6_K"}}"#;
    let four = r#""num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8""#;
    let mxfp4 = group(four, "").replace("float-quantized", "mxfp4-pack-quantized");
    let fp8 = StorageFormat::Fp8(Fp8 { scales: Fp8Scales::Row, suffix: SCALE });
    for (config, name, wanted) in [
        (&*packed(FOUR), "mamba.in_proj.weight", int(4, Some(32), true, false, rows)),
        (&act_order, "mamba.in_proj.weight", int(4, Some(32), false, true, rows)),
        (&eight, "block_sparse_moe.input_linear.weight", int(8, None, true, false, rows)),
        (&mixed, "layers.0.mamba.in_proj.weight", int(8, None, true, false, rows)),
        (&mixed, "layers.2.mamba.in_proj.weight", int(4, Some(32), true, false, rows)),
        (&mixed, "mamba.out_proj.weight", fp8),
        (&mxfp4, "block_sparse_moe.input_linear.weight", GroupQuantization::MXFP4.into()),
        (&mxfp4, "embed_tokens.weight", StorageFormat::Wide),
        (gptq, "mamba.out_proj.weight", StorageFormat::Wide),
        (gptq, "layers.0.mamba.in_proj.weight", int(8, Some(32), false, true, first)),
        (gptq, "layers.2.mamba.in_proj.weight", int(4, None, false, true, first)),
        (gptq, "router.layer.weight", StorageFormat::Wide),
        (
            second,
            "in_proj.weight",
            int(8, None, true, false, Packing::Gptq { zeros_minus_one: false }),
        ),
        (awq, "mamba.in_proj.weight", int(4, Some(64), false, false, Packing::Awq)),
        (awq, "shared_mlp.input_linear.weight", StorageFormat::Wide),
        (awq, "embed_tokens.weight", StorageFormat::Wide),
        (
            bnb,
            "layers.1.self_attn.q_proj.weight",
            int(4, Some(64), true, false, Packing::BitsAndBytes),
        ),
        (bnb, "mamba.in_proj.weight", StorageFormat::Wide),
        (gguf, "layers.1.self_attn.q_proj.weight", GgmlType::Q4_K.int().into()),
        (gguf, "layers.1.self_attn.k_proj.weight", StorageFormat::Wide),
        (gguf, "embed_tokens.weight", GgmlType::Q6_K.int().into()),
    ] {
        let found = stored(config, name).unwrap();
        assert!(!found.is_empty() && found.iter().all(|one| *one == wanted), "{name}: {found:?}");
    }
}

#[test]
fn unsupported_formats_are_refused_by_name() {
    for (config, wanted) in [
        (r#"{"quant_method": "hqq"}"#, "`quantization_config.quant_method` is"),
        (
            r#"{"quant_method": "bitsandbytes"}"#,
            "load_in_4bit` is null, expected true, or load_in_8bit",
        ),
        (
            r#"{"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_storage": "float32"}"#,
            "bnb_4bit_quant_storage` is \"float32\"",
        ),
        (r#"{"quant_method": "gguf", "types": {"a": "IQ3_S"}}"#, "types.a` is \"IQ3_S\""),
        (r#"{"quant_method": "gptq", "bits": 3}"#, "`quantization_config.bits` is 3"),
        (
            r#"{"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}"#,
            "checkpoint_format` is \"marlin\"",
        ),
        (r#"{"quant_method": "gptq", "bits": 4, "group_size": 0}"#, "group_size` is 0"),
        (r#"{"quant_method": "gptq", "bits": 4, "dynamic": {"-:(": {}}}"#, "dynamic` is"),
        (r#"{"quant_method": "gptq", "bits": 4, "dynamic": {".*": {"bits": 2}}}"#, "bits` is 2"),
        (r#"{"quant_method": "awq", "bits": 4, "version": "gemv"}"#, "version` is \"gemv\""),
        (&*group(r#""num_bits": 4, "type": "float", "strategy": "group""#, ""), "num_bits` is 4"),
        (
            &group(ROWS, "").replace("float-q", "nvfp4-pack-q"),
            "num_bits` is 8, expected 4, of NVFP4",
        ),
        (&group(ROWS, "").replace("float-q", "mxfp4-pack-q"), "weights.num_bits` is 8, expected 4"),
        (
            &group(r#""num_bits": 4, "type": "float", "group_size": 16"#, "")
                .replace("float-q", "mxfp4-pack-q"),
            "weights.group_size` is 16, expected 32",
        ),
        (&packed(&FOUR.replace('4', "3")), "weights.num_bits` is 3"),
        (&packed(ROWS), "weights.type` is \"float\""),
        (&packed(&FOUR.replace("group", "tensor")), "weights.strategy` is \"tensor\""),
        (&packed(&format!(r#"{FOUR}, "actorder": "some""#)), "weights.actorder` is \"some\""),
        (&group(ROWS, r#", "kv_cache_scheme": {"num_bits": 8}"#), "kv_cache_scheme"),
        (&group(ROWS, r#", "ignore": ["re:("]"#), "`quantization_config.ignore`"),
        (
            r#"{"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {}}"#,
            "`quantization_config.format` is \"int-quantized\"",
        ),
        (
            r#"{"quant_method": "fp8", "weight_block_size": [64, 64]}"#,
            "weight_block_size` is [64,64], expected [128, 128]",
        ),
    ] {
        let error = stored(config, "").unwrap_err();
        assert!(error.contains(wanted), "{error}");
    }
}

/// Granite 4.0-H micro has 2.985 G linear values; its head is the embedding, which is not quantized.
#[test]
fn bytes_are_those_of_float8() {
    let wide = shape("granite-4.0-h-micro").unwrap();
    let [wide, narrow] =
        [wide.clone(), with_fp8_weights(wide)].map(|of| Architecture::of(&of).unwrap());
    let [before, after] =
        [&wide, &narrow].map(|of| of.weight_bytes_per_step(2, UnexpandedWeights::Projections, 1));
    let linear = before - after;
    assert!((linear as f64 / 2.985e9 - 1.0).abs() < 5e-3, "{linear}");
    assert_eq!(wide.params.count(), narrow.params.count());
}

/// Half a byte per linear value, and two bytes per 128 values for the scale.
#[test]
fn bytes_are_those_of_integers() {
    let wide = shape("granite-4.0-h-micro").unwrap();
    let narrow = with_int_weights(wide.clone(), 4).unwrap();
    let [wide, narrow] = [wide, narrow].map(|of| Architecture::of(&of).unwrap());
    let [before, after] =
        [&wide, &narrow].map(|of| of.weight_bytes_per_step(2, UnexpandedWeights::Projections, 1));
    let saved = 2.0 - (0.5 + 2.0 / 128.0);
    assert!(((before - after) as f64 / (saved * 2.985e9) - 1.0).abs() < 5e-3, "{before} {after}");
    // The CPU stores scales in float32; both keep experts as integers too, of which a token uses few.
    let host = narrow.weight_bytes_per_step(2, UnexpandedWeights::Integers, 1);
    assert!(((host - after) as f64 / (2.985e9 * 2.0 / 128.0) - 1.0).abs() < 5e-3, "{host} {after}");
    let tiny =
        Architecture::of(&with_int_weights(shape("granite-4.0-h-tiny").unwrap(), 4).unwrap());
    let [gpu, host] = [UnexpandedWeights::Projections, UnexpandedWeights::Integers]
        .map(|keeps| tiny.as_ref().unwrap().weight_bytes_per_step(2, keeps, 1));
    assert!(gpu < host && host < gpu * 21 / 20, "{host} {gpu}");
}

/// Scales of experts, and of what is multiplied with them, are float32 on GPUs too.
#[test]
fn bytes_are_those_of_experts() {
    let config = with_int_weights(shape("granite-4.0-h-tiny").unwrap(), 4).unwrap();
    let tiny = Architecture::of(&config).unwrap();
    for (name, scale) in [
        ("block_sparse_moe.input_linear.weight", 4.0),
        ("shared_mlp.output_linear.weight", 4.0),
        ("mamba.in_proj.weight", 2.0),
    ] {
        let param = tiny.params.iter().find(|param| param.name.ends_with(name)).unwrap();
        let bytes = param.bytes(2, UnexpandedWeights::Projections) as f64 / param.len() as f64;
        assert_eq!(bytes, 0.5 + scale / 128.0, "{name}");
    }
}

/// llama.cpp uses more bits for values than for queries and keys, which GPUs multiply together.
#[test]
fn matrices_fused_with_another_storage_are_expanded() {
    let name = |of: &str| format!("model.layers.0.self_attn.{of}_proj.weight");
    for (values, kept) in [
        (GgmlType::Q4_K, true),
        (GgmlType::Q4_0, true),
        (GgmlType::Q6_K, false),
        (GgmlType::MXFP4, false),
    ] {
        let blocks =
            [("q", GgmlType::Q4_K), ("k", GgmlType::Q4_K), ("v", values), ("o", GgmlType::Q4_K)];
        let types = blocks.iter().map(|(of, block)| (name(of), json!(block.name())));
        let types = Value::Object(types.collect());
        let quantised = json!({ "quant_method": "gguf", "types": types });
        let config = shape("llama-mini").unwrap().with("hidden_size", 256.into());
        let llama = Architecture::of(&config.with(KEY, quantised)).unwrap();
        for (of, want) in [("q", kept), ("k", kept), ("v", kept), ("o", true)] {
            let param = llama.params.iter().find(|param| param.name == name(of)).unwrap();
            assert_eq!(param.is_kept(UnexpandedWeights::Projections), want, "{of} with {values:?}");
            assert!(param.is_kept(UnexpandedWeights::Integers));
        }
    }
}

/// A block's bytes in files; on the CPU, and on GPUs for scales that are products, float32 scales and offsets; on GPUs
/// 8 bits for 4 bits in groups of 16, and bfloat16 for unsupported formats and for embeddings.
#[test]
fn bytes_are_those_of_blocks() {
    let name = "model.layers.0.mamba.in_proj.weight";
    let table = "model.embed_tokens.weight";
    let config = shape("granite-4.0-h-micro").unwrap();
    for (block, host, gpu) in [
        (GgmlType::Q8_0, 8.0 + 1.0, 8.0 + 0.5),
        (GgmlType::Q4_0, 4.0 + 1.0, 4.0 + 0.5),
        (GgmlType::Q4_1, 4.0 + 2.0, 4.0 + 2.0),
        (GgmlType::Q5_0, 8.0 + 1.0, 8.0 + 0.5),
        (GgmlType::Q4_K, 4.0 + 2.0, 4.0 + 2.0),
        (GgmlType::Q5_K, 8.0 + 2.0, 16.0),
        (GgmlType::Q6_K, 8.0 + 2.0, 8.0 + 2.0),
        (GgmlType::MXFP4, 4.0 + 1.0, 8.0 + 32.0 / 2048.0),
        (GgmlType::Q5_1, 8.0 + 2.0, 16.0),
        (GgmlType::Q2_K, 4.0 + 4.0, 16.0),
        (GgmlType::Q3_K, 4.0 + 2.0, 8.0 + 2.0),
        (GgmlType::IQ4_NL, 8.0 + 1.0, 8.0 + 0.5),
        (GgmlType::IQ4_XS, 8.0 + 1.0, 8.0 + 1.0),
        (GgmlType::NVFP4, 4.0 + 2.0, 8.0 + 1.0),
    ] {
        let types = json!({ name: block.name(), table: block.name() });
        let quantised = json!({ "quant_method": "gguf", "types": types });
        let architecture = Architecture::of(&config.clone().with(KEY, quantised)).unwrap();
        for param in
            architecture.params.iter().filter(|param| [name, table].contains(&&*param.name))
        {
            let bits = |bytes: u64| bytes as f64 * 8.0 / param.len() as f64;
            assert_eq!(
                bits(param.stored_bytes(2)),
                block.bytes() as f64 * 8.0 / block.values() as f64
            );
            assert_eq!(bits(param.bytes(2, UnexpandedWeights::Integers)), host, "{}", block.name());
            let gpu = if param.name == table { 16.0 } else { gpu };
            assert_eq!(
                bits(param.bytes(2, UnexpandedWeights::Projections)),
                gpu,
                "{}",
                block.name()
            );
        }
    }
}

/// Only powers of two fit float8 with a scale per row. NVFP4's scales are products of two: float32 on GPUs.
#[test]
fn nvfp4_is_widened_on_gpus_and_is_not_mxfp4() {
    let (nvfp4, mxfp4) = (GroupQuantization::NVFP4, GroupQuantization::MXFP4);
    assert!(mxfp4.is_mxfp4() && !mxfp4.has_wide_scales());
    assert!(!nvfp4.is_mxfp4() && nvfp4.has_wide_scales());
    assert_eq!(nvfp4.on_gpus().bits, 8);
}

#[test]
fn modelopt_names_modules_by_algorithm() {
    let fp8 = StorageFormat::Fp8(Fp8 { scales: Fp8Scales::Tensor, suffix: SCALE });
    let nvfp4 = StorageFormat::from(GroupQuantization::NVFP4);
    let wide = StorageFormat::Wide;
    let all = r#"{"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "model.layers.0.mamba*",
        "language_model.model.layers.1", "*.shared_mlp.*"]}"#;
    // modelopt's separate file, which has no name of the method.
    let mixed = r#"{"quant_algo": "MIXED_PRECISION", "quantized_layers": {
        "model.language_model.layers.0.block_sparse_moe": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
        "model.layers.0.mamba.in_proj": {"quant_algo": "FP8"}}}"#;
    let groups = r#"{"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "config_groups": {
        "a": {"targets": ["model.layers.0.mamba.in_proj"], "weights": {"num_bits": 8, "type": "float"}},
        "b": {"targets": ["model.layers.0.shared_mlp"],
            "weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}"#;
    for (config, name, wanted) in [
        (all, "layers.0.mamba.in_proj.weight", wide),
        (all, "layers.2.mamba.in_proj.weight", nvfp4),
        (all, "layers.1.self_attn.q_proj.weight", wide),
        (all, "layers.2.block_sparse_moe.input_linear.weight", nvfp4),
        (all, "shared_mlp.input_linear.weight", wide),
        (all, "embed_tokens.weight", wide),
        (mixed, "layers.0.block_sparse_moe.input_linear.weight", nvfp4),
        (mixed, "layers.0.mamba.in_proj.weight", fp8),
        (mixed, "layers.0.mamba.out_proj.weight", wide),
        (groups, "layers.0.mamba.in_proj.weight", fp8),
        (groups, "layers.0.shared_mlp.input_linear.weight", nvfp4),
        (groups, "layers.2.mamba.in_proj.weight", wide),
    ] {
        let found = stored(config, name).unwrap();
        assert!(!found.is_empty() && found.iter().all(|one| *one == wanted), "{name}: {found:?}");
    }
    for (config, wanted) in [
        (r#"{"quant_method": "modelopt", "quant_algo": "MXFP8"}"#, "quant_algo` is \"MXFP8\""),
        (
            r#"{"quant_algo": "NVFP4", "group_size": 32}"#,
            "group_size` is 32, expected 16, of NVFP4",
        ),
        (r#"{"quant_algo": "MIXED_PRECISION"}"#, "config_groups` is missing"),
    ] {
        let error = stored(config, "in_proj.weight").unwrap_err();
        assert!(error.contains(wanted), "{error}");
    }
}
