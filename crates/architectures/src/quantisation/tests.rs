//! What configs say of how weights are stored.

use super::*;
use crate::{Keeps, shape};

/// How the parameters of a reduced Granite are stored, of those whose names end so, in the order of layers.
fn stored(config: &str, name: &str) -> Result<Vec<Stored>, String> {
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
    let fp8 = |scales, suffix| Stored::Fp8(Fp8 { scales, suffix });
    let (rows, blocks) = (fp8(Fp8Scales::Row, SCALE), fp8(Fp8Scales::Block, SCALE_INV));
    let ignoring = group(ROWS, r#", "ignore": ["lm_head", "re:.*block_sparse_moe.router"]"#);
    let inverse = r#"{"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [128, 128], "modules_to_not_convert": ["router", "model.layers.0.mamba"]}"#;
    for (config, name, wanted) in [
        (&*ignoring, "shared_mlp.input_linear.weight", rows),
        (&ignoring, "block_sparse_moe.input_linear.weight", rows),
        (&ignoring, "mamba.in_proj.weight", rows),
        (&ignoring, "router.layer.weight", Stored::Wide),
        // No linear modules, whatever a target says.
        (&ignoring, "embed_tokens.weight", Stored::Wide),
        (&ignoring, "conv1d.weight", Stored::Wide),
        (&ignoring, "A_log", Stored::Wide),
        (inverse, "shared_mlp.input_linear.weight", blocks),
        (inverse, "layers.0.mamba.in_proj.weight", Stored::Wide),
    ] {
        let found = stored(config, name).unwrap();
        assert!(!found.is_empty() && found.iter().all(|one| *one == wanted), "{name}: {found:?}");
    }
}

#[test]
fn what_is_not_read_is_refused_by_its_name() {
    for (config, wanted) in [
        (
            r#"{"quant_method": "gptq", "bits": 4}"#,
            "`quantization_config.quant_method` is \"gptq\"",
        ),
        (
            &*group(r#""num_bits": 4, "type": "int", "strategy": "group""#, ""),
            "weights.num_bits` is 4",
        ),
        (
            &group(r#""num_bits": 8, "type": "int", "strategy": "channel""#, ""),
            "weights.type` is \"int\"",
        ),
        (&group(ROWS, r#", "kv_cache_scheme": {"num_bits": 8}"#), "kv_cache_scheme"),
        (&group(ROWS, r#", "ignore": ["re:("]"#), "`quantization_config.ignore`"),
        (
            r#"{"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}}"#,
            "`quantization_config.format` is \"pack-quantized\"",
        ),
        (
            r#"{"quant_method": "fp8", "weight_block_size": [64, 64]}"#,
            "weight_block_size` is [64,64], wanted [128, 128]",
        ),
    ] {
        let error = stored(config, "").unwrap_err();
        assert!(error.contains(wanted), "{error}");
    }
}

/// 2.985 G linear values of Granite 4.0-H micro; the head is its embedding, which stays as it is.
#[test]
fn bytes_are_those_of_float8() {
    let wide = shape("granite-4.0-h-micro").unwrap();
    let [wide, narrow] = [wide.clone(), in_fp8(wide)].map(|of| Architecture::of(&of).unwrap());
    let [before, after] =
        [&wide, &narrow].map(|of| of.weight_bytes_per_step(2, Keeps::Projections, 1));
    let linear = before - after;
    assert!((linear as f64 / 2.985e9 - 1.0).abs() < 5e-3, "{linear}");
    assert_eq!(wide.params.count(), narrow.params.count());
}
