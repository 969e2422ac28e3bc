//! A random model in a temporary folder, and the comparison with the oracle.

use crate::eager::Eager;
use crate::oracle::Oracle;
use crate::repack;
use device::Device;
use facts::BackendKind;
use models::{
    Batch, Capacity, Engine, LogitsSelection, Model, Storage, SynthOptions, open, shape, synth,
};
use safetensors::SafeTensors;
use std::path::Path;
use tempfile::TempDir;

/// Every shape whose logits are compared, with changed keys.
pub(crate) const SUBJECTS: &[SampledTokens<'static>] = &[
    ("granite-hybrid-mini", &[]),
    ("granite-hybrid-mini", &[("mamba_n_groups", "2")]),
    ("granite-moe-mini", &[("mamba_n_groups", "1")]),
    ("granite-moe-mini", &[]),
    ("granite-rope-mini", &[]),
    ("kimi-linear-mini", &[]),
    ("llama-mini", &[]),
    ("llama-mini", &[("attention_bias", "true"), ("tie_word_embeddings", "true")]),
    ("llama-mini", PHI3),
    ("llama-mini", GLM_4),
    ("llama-mini", OLMO_3),
    ("llama-mini", GRANITE_SWA),
    ("mistral-mini", &[]),
    ("qwen2-mini", &[]),
    ("qwen3-mini", &[]),
    ("qwen3-moe-mini", &[]),
    ("qwen3-moe-mini", MIXTRAL),
    ("qwen3-moe-mini", MINIMAX_M2),
    ("granite-dense-mini", &[]),
    ("bamba-mini", &[]),
    ("qwen3-next-mini", &[]),
    ("qwen3.5-moe-mini", &[]),
    ("olmo-hybrid-mini", &[]),
    ("olmo-hybrid-mini", OLMO_WITHOUT_POSITIONS),
    ("mamba2-mini", &[]),
    ("mamba-mini", &[]),
    ("mamba-mini", &[("use_bias", "false"), ("use_conv_bias", "false"), ("state_size", "1")]),
    ("falcon-mamba-mini", &[]),
    ("jamba-mini", &[]),
    ("jamba-mini", JAMBA),
    ("falcon-h1-mini", &[]),
    ("falcon-h1-mini", FALCON_NORMED),
    ("falcon-h1-mini", &[("mamba_rms_norm", "true"), ("tie_word_embeddings", "true")]),
    ("gpt-oss-mini", &[]),
    ("gpt-oss-mini", MXFP4),
    ("lfm2-mini", &[]),
    ("lfm2-mini", LFM2_BIASED),
    ("lfm2-moe-mini", &[]),
    ("nemotron-mini", &[]),
    ("nemotron-mini", NEMOTRON_SUPER),
    ("qwen3-next-mini", &[("num_experts", "0"), ("rms_norm_eps", "1e-5")]),
    ("granite-hybrid-mini", FLOAT8_ROWS),
    ("granite-moe-mini", FLOAT8_ROWS),
    ("kimi-linear-mini", FLOAT8_ROWS),
    ("llama-mini", FLOAT8_TENSORS),
    ("qwen3-mini", FLOAT8_BLOCKS),
    ("granite-hybrid-mini", FLOAT8_INVERSE),
    ("granite-moe-mini", INTEGERS_MIXED),
    ("kimi-linear-mini", INTEGERS_MIXED),
    ("granite-hybrid-mini", GPTQ_ORDERED),
    ("qwen3-moe-mini", GPTQ_SECOND),
    ("llama-mini", AWQ),
    ("llama-mini", GLM_4_FLOAT8),
    ("llama-mini", GLM_4_INTEGERS),
];

/// float8 weights in the formats of checkpoints. Some modules are excluded by name, some by a regular expression.
pub(crate) const FLOAT8_ROWS: &[(&str, &str)] = &[(
    "quantization_config",
    r#"{"quant_method": "compressed-tensors", "format": "float-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true}}},
        "ignore": ["lm_head", "re:.*router", "re:model.layers.1..*_proj"]}"#,
)];
pub(crate) const FLOAT8_TENSORS: &[(&str, &str)] = &[(
    "quantization_config",
    r#"{"quant_method": "compressed-tensors", "format": "float-quantized",
        "config_groups": {"group_0": {"targets": ["re:.*mlp.*"], "weights": {
            "num_bits": 8, "type": "float", "strategy": "tensor"}}}, "ignore": []}"#,
)];
pub(crate) const FLOAT8_BLOCKS: &[(&str, &str)] = &[(
    "quantization_config",
    r#"{"quant_method": "compressed-tensors", "format": "float-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}}}}"#,
)];
const FLOAT8_INVERSE: &[(&str, &str)] = &[(
    "quantization_config",
    r#"{"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [128, 128], "modules_to_not_convert": ["model.layers.0"]}"#,
)];

/// Integer weights with zero points, groups and whole rows, of both sizes, in one model.
pub(crate) const INTEGERS_MIXED: &[(&str, &str)] = &[(
    "quantization_config",
    r#"{"quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {
                "num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": true}},
            "group_1": {"targets": ["re:.*(output_linear|o_proj|down_proj)$"], "weights": {
                "num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": false}},
            "group_2": {"targets": ["re:model.layers.1.*"], "weights": {
                "num_bits": 8, "type": "int", "strategy": "channel", "symmetric": true}}},
        "ignore": ["lm_head", "re:.*router.*", "re:.*[.]gate$"]}"#,
)];
pub(crate) const GPTQ_ORDERED: &[(&str, &str)] = &[(
    "quantization_config",
    r#"{"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": true, "sym": false}"#,
)];
pub(crate) const GPTQ_SECOND: &[(&str, &str)] = &[(
    "quantization_config",
    r#"{"quant_method": "gptq", "checkpoint_format": "gptq_v2", "bits": 8, "group_size": 32, "desc_act": false,
        "sym": true, "dynamic": {"-:lm_head": {}}}"#,
)];
pub(crate) const AWQ: &[(&str, &str)] = &[(
    "quantization_config",
    r#"{"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true, "version": "gemm",
        "modules_to_not_convert": []}"#,
)];

/// A shape, and keys with other values as JSON.
pub(crate) type SampledTokens<'a> = (&'a str, &'a [(&'a str, &'a str)]);

/// One parameter for queries, keys and values, one for gate and up, and heads of which half is rotated.
const PHI3: &[(&str, &str)] = &[
    ("model_type", r#""phi3""#),
    ("architectures", r#"["Phi3ForCausalLM"]"#),
    ("partial_rotary_factor", "0.5"),
    ("rope_scaling", "null"),
];

/// Norms before and after each part, and half of each head rotated by adjacent channels.
const GLM_4: &[(&str, &str)] = &[
    ("model_type", r#""glm4""#),
    ("architectures", r#"["Glm4ForCausalLM"]"#),
    ("head_dim", "16"),
    ("partial_rotary_factor", "0.5"),
    ("attention_bias", "true"),
    ("rope_scaling", "null"),
];

const GLM_4_FLOAT8: &[(&str, &str)] =
    &[GLM_4[0], GLM_4[1], GLM_4[2], GLM_4[3], GLM_4[4], GLM_4[5], FLOAT8_ROWS[0]];
const GLM_4_INTEGERS: &[(&str, &str)] =
    &[GLM_4[0], GLM_4[1], GLM_4[2], GLM_4[3], GLM_4[4], GLM_4[5], INTEGERS_MIXED[0]];

/// Norms after each part and over all heads, and a scaled rotation in the layer without a window.
const OLMO_3: &[(&str, &str)] = &[
    ("model_type", r#""olmo3""#),
    ("architectures", r#"["Olmo3ForCausalLM"]"#),
    ("sliding_window", "5"),
    ("layer_types", r#"["sliding_attention", "full_attention", "sliding_attention"]"#),
];

/// Sinks, multipliers, a window in two layers, and a layer without positions.
const GRANITE_SWA: &[(&str, &str)] = &[
    ("model_type", r#""granite_swa""#),
    ("architectures", r#"["GraniteSWAForCausalLM"]"#),
    ("sliding_window", "5"),
    ("layer_types", r#"["full_attention", "sliding_attention", "sliding_attention"]"#),
    ("layer_rope_theta", "[0, 10000.0, 500.0]"),
    ("embedding_multiplier", "12.0"),
    ("residual_multiplier", "0.22"),
    ("attention_multiplier", "0.25"),
    ("logits_scaling", "0.5"),
    ("rope_scaling", "null"),
];

/// Norms of queries and keys over all heads, half of each head rotated, and sigmoid routers in every layer.
const MINIMAX_M2: &[(&str, &str)] = &[
    ("model_type", r#""minimax_m2""#),
    ("architectures", r#"["MiniMaxM2ForCausalLM"]"#),
    ("mlp_only_layers", "[]"),
    ("partial_rotary_factor", "0.5"),
];

/// As gpt-oss is published.
const MXFP4: &[(&str, &str)] = &[(
    "quantization_config",
    r#"{"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
        "model.embed_tokens", "lm_head"]}"#,
)];

/// A gate after the norm, and step sizes with the gate's multiplier.
pub(crate) const FALCON_NORMED: &[(&str, &str)] = &[
    ("mamba_rms_norm", "true"),
    ("mamba_norm_before_gate", "true"),
    ("ssm_multipliers", "[0.35, 0.25, 0.18, 0.5, 0.35]"),
    ("mlp_multipliers", "[1.0, 0.3]"),
];

/// Biases of projections and convolution, an untied head, and one more tap.
pub(crate) const LFM2_BIASED: &[(&str, &str)] =
    &[("conv_bias", "true"), ("tie_embedding", "false"), ("conv_L_cache", "4")];

/// Experts on a narrower vector, eight groups, and weights that do not add up to 1.
pub(crate) const NEMOTRON_SUPER: &[(&str, &str)] = &[
    ("hybrid_override_pattern", r#""EM*ME""#),
    ("moe_latent_size", "32"),
    ("n_groups", "8"),
    ("norm_topk_prob", "false"),
];

/// As published, and with biases and positive eigenvalues.
const OLMO_WITHOUT_POSITIONS: &[(&str, &str)] = &[
    ("rope_parameters", r#"{"rope_theta": null, "rope_type": "default"}"#),
    ("attention_bias", "true"),
    ("linear_allow_neg_eigval", "false"),
];

/// Attention first, no experts, and additional biases.
const JAMBA: &[(&str, &str)] = &[
    ("attn_layer_offset", "0"),
    ("num_experts", "1"),
    ("mamba_proj_bias", "true"),
    ("mamba_conv_bias", "false"),
];

/// Other names for experts, which are in every layer.
const MIXTRAL: &[(&str, &str)] = &[
    ("model_type", r#""mixtral""#),
    ("architectures", r#"["MixtralForCausalLM"]"#),
    ("mlp_only_layers", "[]"),
];

pub(crate) const VOCABULARY: usize = 512;

pub(crate) struct Subject {
    folder: TempDir,
    pub(crate) name: String,
}

impl Subject {
    pub(crate) fn draw((name, changes): SampledTokens<'_>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = shape(name).unwrap();
        for (key, value) in changes {
            config = config.with(key, serde_json::from_str(value).unwrap());
        }
        // Small shards, so that the index is read too.
        let options = SynthOptions { seed: 7, layers: None, shard_bytes: 100_000 };
        let quantised = changes.iter().find(|(key, _)| *key == "quantization_config");
        let quantised = quantised.map(|(_, value)| serde_json::from_str(value).unwrap());
        let quantised: serde_json::Value = quantised.unwrap_or_default();
        match quantised["quant_method"].as_str() {
            Some("gptq" | "awq") => repack::draw(config, &quantised, folder.path(), &options),
            _ => drop(synth(config, folder.path(), &options).unwrap()),
        }
        Self { folder, name: format!("{name} {changes:?}") }
    }

    /// Divides the weights whose names contain `part` by a power of two, in the files.
    pub(crate) fn shrink(&self, part: &str, power: u16) {
        let mut found = 0;
        for entry in std::fs::read_dir(self.folder.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|ending| ending != "safetensors") {
                continue;
            }
            let mut bytes = std::fs::read(&path).unwrap();
            let (header, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
            for (name, info) in metadata.tensors() {
                let range = info.data_offsets.0 + header + 8..info.data_offsets.1 + header + 8;
                if name.contains(part) {
                    found += 1;
                    for value in bytes[range].as_chunks_mut::<2>().0 {
                        // In bfloat16 the exponent starts at bit 7. Values that would underflow become 0.
                        let bits = u16::from_le_bytes(*value);
                        let exponent = bits >> 7 & 0xff;
                        let less = if exponent > power { bits - (power << 7) } else { 0 };
                        *value = less.to_le_bytes();
                    }
                }
            }
            std::fs::write(&path, bytes).unwrap();
        }
        assert!(found > 0, "no weights with {part}");
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        SUBJECTS.iter().map(|subject| Self::draw(*subject))
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn oracle(&self) -> Oracle {
        Oracle::read(self.folder.path())
    }

    pub(crate) fn engine(&self, sequences: usize) -> Box<dyn Engine> {
        let device = backends::open(BackendKind::Cpu).unwrap();
        Box::new(Eager::new(self.engine_on(device, Storage::F32, sequences)))
    }

    pub(crate) fn engine_on(
        &self,
        device: Device,
        storage: Storage,
        sequences: usize,
    ) -> Box<dyn Engine> {
        let model = Model::read(self.folder.path()).unwrap();
        open(model, device, storage, Capacity { sequences, tokens: 300 }).unwrap()
    }
}

/// Pseudorandom token ids, so that no layer benefits from a pattern.
pub(crate) fn tokens(seed: u32, count: usize) -> Vec<u32> {
    let token =
        |i: u32| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 7) % VOCABULARY as u32;
    (1..=count as u32).map(token).collect()
}

/// Advances one sequence by its tokens in pieces and returns the logits of every token.
pub(crate) fn advance(
    engine: &mut dyn Engine,
    place: usize,
    tokens: &[u32],
    piece: usize,
) -> Vec<f32> {
    let step =
        |piece| engine.step(&Batch::new().with(place, piece), LogitsSelection::Every).unwrap();
    tokens.chunks(piece).flat_map(step).collect()
}

/// Compares logits with the oracle's.
pub(crate) fn check(name: &str, got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{name}: logits");
    let mut worst = (0.0, 0);
    for (at, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(error.is_finite(), "{name}: token {} is {got}", at / VOCABULARY);
        if error > worst.0 {
            worst = (error, at);
        }
    }
    let (error, at) = worst;
    assert!(
        error <= 1e-5,
        "{name}: token {} logit {} is {error:.2e} off",
        at / VOCABULARY,
        at % VOCABULARY
    );
}
