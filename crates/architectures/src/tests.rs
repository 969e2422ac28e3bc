//! Names and shapes of the tensors of published checkpoints, by family.

mod config_keys;

use crate::{Architecture, Config, UnexpandedWeights};

fn describe(text: &str) -> Architecture {
    Architecture::describe(&Config::parse("config.json", text).unwrap()).unwrap()
}

/// Compares all tensors of a part of a model in any order, with the prefix removed.
fn check(config: &str, prefix: &str, expect: &[(&str, &[usize])]) {
    let described = describe(config);
    let params = described.params.iter();
    let own = params.filter_map(|param| Some((param.name.strip_prefix(prefix)?, &*param.shape)));
    let mut found: Vec<(&str, &[usize])> = own.collect();
    let mut expect = expect.to_vec();
    found.sort_unstable();
    expect.sort_unstable();
    assert_eq!(found, expect, "{prefix} of {config}");
}

const FALCON: &str = r#"{"model_type": "falcon_h1", "hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "mamba_d_ssm": 12, "mamba_n_heads": 3,
    "mamba_d_head": 4, "mamba_d_state": 5, "mamba_n_groups": 1, "mamba_d_conv": 4, "vocab_size": 10}"#;

#[test]
fn falcon_has_attention_parallel_to_a_mixer_without_a_norm() {
    check(
        FALCON,
        "model.layers.0.",
        &[
            ("input_layernorm.weight", &[8]),
            ("self_attn.q_proj.weight", &[8, 8]),
            ("self_attn.k_proj.weight", &[4, 8]),
            ("self_attn.v_proj.weight", &[4, 8]),
            ("self_attn.o_proj.weight", &[8, 8]),
            ("mamba.in_proj.weight", &[12 + 22 + 3, 8]),
            ("mamba.conv1d.weight", &[22, 1, 4]),
            ("mamba.conv1d.bias", &[22]),
            ("mamba.A_log", &[3]),
            ("mamba.D", &[3]),
            ("mamba.dt_bias", &[3]),
            ("mamba.out_proj.weight", &[8, 12]),
            ("pre_ff_layernorm.weight", &[8]),
            ("feed_forward.gate_proj.weight", &[6, 8]),
            ("feed_forward.up_proj.weight", &[6, 8]),
            ("feed_forward.down_proj.weight", &[8, 6]),
        ],
    );
    check(FALCON, "model.final", &[("_layernorm.weight", &[8])]);
    check(FALCON, "lm_head", &[(".weight", &[10, 8])]);
}

#[test]
fn nemotrons_layers_have_one_part() {
    let config = r#"{"model_type": "nemotron_h", "hidden_size": 8, "intermediate_size": 6, "vocab_size": 10,
        "hybrid_override_pattern": "-E", "n_routed_experts": 2, "moe_intermediate_size": 3,
        "moe_shared_expert_intermediate_size": 5, "moe_latent_size": 4, "num_experts_per_tok": 1}"#;
    check(
        config,
        "backbone.layers.0.",
        &[
            ("norm.weight", &[8]),
            ("mixer.up_proj.weight", &[6, 8]),
            ("mixer.down_proj.weight", &[8, 6]),
        ],
    );
    check(
        config,
        "backbone.layers.1.mixer.",
        &[
            ("gate.weight", &[2, 8]),
            ("gate.e_score_correction_bias", &[2]),
            ("fc1_latent_proj.weight", &[4, 8]),
            ("fc2_latent_proj.weight", &[8, 4]),
            ("experts.0.up_proj.weight", &[3, 4]),
            ("experts.0.down_proj.weight", &[4, 3]),
            ("experts.1.up_proj.weight", &[3, 4]),
            ("experts.1.down_proj.weight", &[4, 3]),
            ("shared_experts.up_proj.weight", &[5, 8]),
            ("shared_experts.down_proj.weight", &[8, 5]),
        ],
    );
}

#[test]
fn unsupported_settings_of_nemotron_and_falcon_are_refused() {
    for (shape, key, value, words) in [
        (
            "nemotron-mini",
            "n_group",
            "3",
            "`n_group` is 3, expected groups of equal size, of at least two of the 8 experts",
        ),
        (
            "nemotron-mini",
            "mlp_hidden_act",
            r#""silu""#,
            "`mlp_hidden_act` is \"silu\", expected relu2",
        ),
        (
            "falcon-h1-mini",
            "ssm_in_multiplier",
            "0",
            "`ssm_in_multiplier` is 0, expected numbers other than 0",
        ),
        (
            "falcon-h1-mini",
            "mlp_multipliers",
            "[0.5]",
            "`mlp_multipliers` is [0.5], expected 2 finite numbers",
        ),
        (
            "falcon-h1-mini",
            "projectors_bias",
            "true",
            "`projectors_bias` is true, expected false, the published models have it so",
        ),
        (
            "lfm2-moe-mini",
            "use_expert_bias",
            "false",
            "`use_expert_bias` is false, expected true, the published models have it so",
        ),
        ("lfm2-mini", "conv_L_cache", "5", "`conv_L_cache` is 5, expected 2 to 4 taps"),
        ("mamba-mini", "conv_kernel", "5", "`conv_kernel` is 5, expected 2 to 4 taps"),
        ("falcon-mamba-mini", "hidden_act", r#""gelu""#, "`hidden_act` is \"gelu\", expected silu"),
        ("jamba-mini", "mamba_d_conv", "1", "`mamba_d_conv` is 1, expected 2 to 4 taps"),
        (
            "jamba-mini",
            "mamba_inner_layernorms",
            "false",
            "`mamba_inner_layernorms` is false, expected true, the published models have it so",
        ),
    ] {
        let config = crate::shape(shape).unwrap();
        let config = config.with(key, serde_json::from_str(value).unwrap());
        let error = Architecture::of(&config).unwrap_err().to_string();
        assert_eq!(error, format!("{shape}: {words}"));
    }
}

#[test]
fn gpt_oss_has_its_experts_in_mxfp4_or_as_transposes() {
    let config = crate::shape("gpt-oss-mini").unwrap();
    let experts = |config: &Config| {
        let described = Architecture::describe(config).unwrap();
        assert_eq!(described.refused, None);
        let mut named = described.params.iter();
        let param = named.find(|param| param.name.ends_with("1.mlp.experts.gate_up_proj")).unwrap();
        let bytes = [UnexpandedWeights::Integers, UnexpandedWeights::Projections]
            .map(|keeps| param.bytes(2, keeps));
        (param.laid_shape(), param.stored_bytes(2), bytes)
    };
    let values = 8 * 64 * 128;
    assert_eq!(experts(&config), (vec![8, 64, 128], 2 * values, [2 * values; 2]));
    let quantised = |method: &str| {
        config.clone().with("quantization_config", serde_json::json!({ "quant_method": method }))
    };
    // 4 bits plus 8 per 32 values in files; on the CPU 32 bits per scale, on GPUs float8 and 32 bits per row.
    let kept = [values * 5 / 8, values + 4 * 8 * 128];
    assert_eq!(experts(&quantised("mxfp4")), (vec![8, 128, 64], values / 32 * 17, kept));
    let error = Architecture::of(&quantised("gptq")).unwrap_err().to_string();
    let wanted =
        "`quantization_config.quant_method` is \"gptq\", expected mxfp4, or no quantization_config";
    assert!(error.ends_with(wanted), "{error}");
    let large = Architecture::of(&crate::shape("gpt-oss-20b").unwrap()).unwrap();
    assert_eq!(large.params.count() / 10_000_000, 2091);
}

#[test]
fn lfms_feed_forward_parts_are_two_thirds_as_wide_as_said() {
    let params = |name: &str| Architecture::of(&crate::shape(name).unwrap()).unwrap().params;
    let small = params("lfm2-350m");
    let width = small.iter().find(|param| param.name == "model.layers.0.feed_forward.w1.weight");
    // 6656 times two thirds, rounded up to a multiple of 256.
    assert_eq!(width.unwrap().shape, [4608, 1024]);
    assert_eq!(small.count(), 354_483_968);
    // 8.3 billion, of which 1.5 are active per token.
    let large = Architecture::of(&crate::shape("lfm2-8b-a1b").unwrap()).unwrap();
    assert_eq!(large.params.count() / 10_000_000, 833);
    assert_eq!(large.weights_per_token() / 10_000_000, 155);
    check(
        r#"{"model_type": "lfm2", "hidden_size": 8, "intermediate_size": 6, "block_multiple_of": 2, "num_hidden_layers": 2,
            "full_attn_idxs": [1], "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 10}"#,
        "model.layers.",
        &[
            ("0.operator_norm.weight", &[8]),
            ("0.conv.in_proj.weight", &[24, 8]),
            ("0.conv.conv.weight", &[8, 1, 3]),
            ("0.conv.out_proj.weight", &[8, 8]),
            ("0.ffn_norm.weight", &[8]),
            ("0.feed_forward.w1.weight", &[4, 8]),
            ("0.feed_forward.w3.weight", &[4, 8]),
            ("0.feed_forward.w2.weight", &[8, 4]),
            ("1.operator_norm.weight", &[8]),
            ("1.self_attn.q_proj.weight", &[8, 8]),
            ("1.self_attn.k_proj.weight", &[4, 8]),
            ("1.self_attn.v_proj.weight", &[4, 8]),
            ("1.self_attn.out_proj.weight", &[8, 8]),
            ("1.self_attn.q_layernorm.weight", &[4]),
            ("1.self_attn.k_layernorm.weight", &[4]),
            ("1.ffn_norm.weight", &[8]),
            ("1.feed_forward.w1.weight", &[4, 8]),
            ("1.feed_forward.w3.weight", &[4, 8]),
            ("1.feed_forward.w2.weight", &[8, 4]),
        ],
    );
}

const QWEN: &str = r#"{"model_type": "KIND", "hidden_size": 8, "num_hidden_layers": 2, "full_attention_interval": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "linear_num_key_heads": 1,
    "linear_num_value_heads": 2, "linear_key_head_dim": 3, "linear_value_head_dim": 5, "linear_conv_kernel_dim": 4,
    "num_experts": 1, "moe_intermediate_size": 6, "shared_expert_intermediate_size": 7, "vocab_size": 10}"#;

#[test]
fn qwen_has_gates_and_its_newer_models_other_names() {
    let next = QWEN.replace("KIND", "qwen3_next");
    let shared: &[(&str, &[usize])] = &[
        ("conv1d.weight", &[16, 1, 4]),
        ("dt_bias", &[2]),
        ("A_log", &[2]),
        ("norm.weight", &[5]),
        ("out_proj.weight", &[8, 10]),
    ];
    let two: &[(&str, &[usize])] =
        &[("in_proj_qkvz.weight", &[26, 8]), ("in_proj_ba.weight", &[4, 8])];
    check(&next, "model.layers.0.linear_attn.", &[shared, two].concat());
    let attention: &[(&str, &[usize])] = &[
        ("q_proj.weight", &[16, 8]),
        ("k_proj.weight", &[4, 8]),
        ("v_proj.weight", &[4, 8]),
        ("o_proj.weight", &[8, 8]),
        ("q_norm.weight", &[4]),
        ("k_norm.weight", &[4]),
    ];
    check(&next, "model.layers.1.self_attn.", attention);
    let beside: &[(&str, &[usize])] = &[
        ("gate.weight", &[1, 8]),
        ("shared_expert_gate.weight", &[1, 8]),
        ("shared_expert.gate_proj.weight", &[7, 8]),
        ("shared_expert.up_proj.weight", &[7, 8]),
        ("shared_expert.down_proj.weight", &[8, 7]),
    ];
    let each: &[(&str, &[usize])] = &[
        ("experts.0.gate_proj.weight", &[6, 8]),
        ("experts.0.up_proj.weight", &[6, 8]),
        ("experts.0.down_proj.weight", &[8, 6]),
    ];
    check(&next, "model.layers.1.mlp.", &[beside, each].concat());
    // A multimodal model nests its language model, in the config and in names.
    let inner = QWEN.replace("KIND", "qwen3_5_moe_text");
    let newer = format!(r#"{{"model_type": "qwen3_5_moe", "text_config": {inner}}}"#);
    let four: &[(&str, &[usize])] = &[
        ("in_proj_qkv.weight", &[16, 8]),
        ("in_proj_z.weight", &[10, 8]),
        ("in_proj_b.weight", &[2, 8]),
        ("in_proj_a.weight", &[2, 8]),
    ];
    check(&newer, "model.language_model.layers.0.linear_attn.", &[shared, four].concat());
    check(&newer, "model.language_model.layers.1.self_attn.", attention);
    let fused: &[(&str, &[usize])] =
        &[("experts.gate_up_proj", &[1, 12, 8]), ("experts.down_proj", &[1, 8, 6])];
    check(&newer, "model.language_model.layers.1.mlp.", &[beside, fused].concat());
}

#[test]
fn jambas_mixer_has_norms_and_its_experts_a_router() {
    let config = r#"{"model_type": "jamba", "hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_experts": 2, "num_experts_per_tok": 1, "mamba_d_state": 3, "mamba_dt_rank": 5,
        "vocab_size": 10}"#;
    check(
        config,
        "model.layers.0.mamba.",
        &[
            ("in_proj.weight", &[32, 8]),
            ("conv1d.weight", &[16, 1, 4]),
            ("conv1d.bias", &[16]),
            ("x_proj.weight", &[11, 16]),
            ("dt_proj.weight", &[16, 5]),
            ("dt_proj.bias", &[16]),
            ("A_log", &[16, 3]),
            ("D", &[16]),
            ("out_proj.weight", &[8, 16]),
            ("dt_layernorm.weight", &[5]),
            ("b_layernorm.weight", &[3]),
            ("c_layernorm.weight", &[3]),
        ],
    );
    check(config, "model.layers.1.feed_forward.router.", &[("weight", &[2, 8])]);
}

/// The larger one is state-spaces/mamba-130m-hf, with the published number of parameters.
#[test]
fn mambas_states_are_of_each_channel_and_shared_by_none() {
    let mini = Architecture::of(&crate::shape("mamba-mini").unwrap()).unwrap();
    let states = mini.layers[0].mixer.states();
    assert_eq!((states.recurrent, states.convolved), (112 * 17, 112 * 2));
    let crate::Mixer::Mamba1(mixer) = &mini.layers[0].mixer else { panic!("no Mamba") };
    // The bias of the step size projection belongs to the scan, the other biases to their projections.
    let biases = [&mixer.in_proj, &mixer.x_proj, &mixer.dt_proj, &mixer.out_proj];
    assert_eq!(biases.map(|of| of.bias.len()), [1, 0, 0, 1]);
    assert_eq!(mini.params.get(mixer.dt_bias).name, "backbone.layers.0.mixer.dt_proj.bias");
    let small = describe(
        r#"{"model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 24, "state_size": 16, "time_step_rank": 48,
            "intermediate_size": 1536, "layer_norm_epsilon": 1e-5, "vocab_size": 50280}"#,
    );
    assert_eq!((small.refused.clone(), small.params.count()), (None, 129_135_360));
    let jamba = Architecture::of(&crate::shape("jamba-mini").unwrap()).unwrap();
    let kinds: Vec<_> =
        jamba.layers.iter().map(|of| (of.mixer.kind(), of.experts.is_some())).collect();
    let both = [("mamba", false), ("attention", true), ("mamba", false), ("mamba", true)];
    assert_eq!(kinds, both);
}

#[test]
fn models_that_no_engine_runs_are_described() {
    let unknown = describe(
        r#"{"model_type": "stablelm", "hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 2,
            "num_attention_heads": 2, "vocab_size": 10}"#,
    );
    assert_eq!(unknown.layers[0].mixer.kind(), "attention");
    let reason = unknown.refused.unwrap().to_string();
    assert_eq!(reason, "config.json: stablelm is no model family that firstlight runs");
    // A config without some values of the arithmetic is described but not run.
    let config = crate::shape("granite-hybrid-mini").unwrap();
    let whole = Architecture::of(&config).unwrap();
    let config = config.with("logits_scaling", serde_json::Value::Null);
    let described = Architecture::describe(&config).unwrap();
    assert_eq!(described.params.count(), whole.params.count());
    assert!(described.logits_divisor.is_nan());
    assert_eq!(described.refused, Architecture::of(&config).err());
}

/// Both projections of attention have biases, except that Qwen2 has none on the output.
#[test]
fn biases_are_those_of_the_published_models() {
    let plain = |kind: &str, bias: bool| {
        let config = format!(
            r#"{{"model_type": "{kind}", "attention_bias": {bias}, "hidden_size": 8, "intermediate_size": 6,
                "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 10}}"#
        );
        describe(&config).params.count()
    };
    let without = plain("llama", false);
    assert_eq!(plain("llama", true) - without, 8 + 4 + 4 + 8);
    assert_eq!(plain("qwen2", false) - without, 8 + 4 + 4);
    assert_eq!(plain("phi3", false), without);
}

/// The rotary embedding of a config with heads of 8 channels.
fn rotation(keys: &str) -> Result<crate::Rope, String> {
    let config = format!(r#"{{"model_type": "llama", "rope_theta": 10000.0 {keys}}}"#);
    let config = Config::parse("config.json", &config).unwrap();
    crate::Rope::of(&config, 8, crate::rope::RotaryFraction::Named(1.0))
        .map_err(|error| error.to_string())
}

/// Frequencies computed by transformers 5.17 (`ROPE_INIT_FUNCTIONS`, in float32).
#[test]
fn rotations_are_those_of_transformers() {
    let check = |keys: &str, expect: &[f64], factor: f64| {
        let got = rotation(keys).unwrap();
        assert_eq!(got.width, 2 * expect.len(), "{keys}");
        for (got, expect) in got.frequencies.iter().zip(expect) {
            assert!((got / expect - 1.0).abs() < 1e-6, "{keys}: {got} for {expect}");
        }
        assert!((got.factor - factor).abs() < 1e-9, "{keys}: {}", got.factor);
    };
    check("", &[1.0, 0.1, 0.01, 0.001], 1.0);
    check(
        r#", "rope_scaling": {"type": "linear", "factor": 4.0}"#,
        &[0.25, 0.02500000037, 0.00249999994, 0.00025000001],
        1.0,
    );
    let llama3 = r#", "rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": "#;
    check(&format!("{llama3} 64}}"), &[1.0, 0.01304225624, 0.00124999997, 0.00012500001], 1.0);
    check(&format!("{llama3} 8192}}"), &[1.0, 0.1, 0.00999999978, 0.00021360758], 1.0);
    let yarn = r#", "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512"#;
    check(&format!("{yarn}}}"), &[1.0, 0.0625, 0.00249999994, 0.00025000001], 1.138629436111989);
    let more = r#""truncate": false, "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 0.5"#;
    check(
        &format!("{yarn}, {more}}}"),
        &[1.0, 0.07566440105, 0.00249999994, 0.00025000001],
        1.0648216253695715,
    );
}

#[test]
fn a_rotation_that_is_not_known_is_refused_by_name() {
    for (keys, words) in [
        (
            r#", "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}"#,
            "`rope_scaling.rope_type` is \"dynamic\", expected default, linear, llama3, yarn or proportional",
        ),
        (
            r#", "rope_scaling": {"type": "longrope"}"#,
            "`rope_scaling.type` is \"longrope\", expected default, linear, llama3, yarn or proportional",
        ),
        (
            r#", "rope_parameters": {"rope_type": "yarn", "factor": 2.0}"#,
            "`rope_parameters.original_max_position_embeddings` is missing, expected a finite number",
        ),
        (
            r#", "partial_rotary_factor": 0.6"#,
            "`partial_rotary_factor` is 0.6, expected an even number of a head's 8 channels to be rotated",
        ),
    ] {
        assert_eq!(rotation(keys).unwrap_err(), format!("config.json: {words}"));
    }
}

#[test]
fn every_shape_can_be_cut_to_its_first_layers() {
    for shape in crate::SHAPES {
        let cut = crate::shape(shape.name).unwrap().first_layers(2).unwrap();
        assert_eq!(Architecture::describe(&cut).unwrap().layers.len(), 2, "{}", shape.name);
    }
}

/// Numbers of parameters as published.
#[test]
fn published_models_have_their_parameters() {
    for (config, count) in [
        // Gemma 3 1B.
        (
            r#"{"model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26,
                "num_attention_heads": 4, "num_key_value_heads": 1, "vocab_size": 262144, "sliding_window": 512,
                "max_position_embeddings": 32768, "rms_norm_eps": 1e-6}"#,
            999_885_952,
        ),
        // SmolLM3 3B.
        (
            r#"{"model_type": "smollm3", "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
                "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 128256,
                "max_position_embeddings": 65536, "rms_norm_eps": 1e-6}"#,
            3_075_098_624,
        ),
        // OLMo 3 7B.
        (
            r#"{"model_type": "olmo3", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
                "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 100278, "sliding_window": 4096,
                "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192},
                "rope_theta": 500000, "max_position_embeddings": 65536, "rms_norm_eps": 1e-6}"#,
            7_298_011_136,
        ),
        // GLM-4 9B of April 2025.
        (
            r#"{"model_type": "glm4", "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40,
                "num_attention_heads": 32, "num_key_value_heads": 2, "vocab_size": 151552, "attention_bias": true,
                "partial_rotary_factor": 0.5, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5}"#,
            9_400_279_040,
        ),
        // DeepSeek V2 Lite.
        (
            r#"{"model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "num_hidden_layers": 27,
                "num_attention_heads": 16, "kv_lora_rank": 512, "q_lora_rank": null, "qk_nope_head_dim": 128,
                "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64, "num_experts_per_tok": 6,
                "n_shared_experts": 2, "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "vocab_size": 102400,
                "max_position_embeddings": 163840, "rms_norm_eps": 1e-6}"#,
            15_706_484_224,
        ),
    ] {
        let described = describe(config);
        assert_eq!(described.refused, None, "{config}");
        assert_eq!(described.params.count(), count, "{config}");
    }
}

#[test]
fn groups_of_experts_run_on_the_cpu_only() {
    let config = crate::shape("kimi-linear-mini").unwrap();
    let cpu_only = |config: &Config| Architecture::of(config).unwrap().cpu_only();
    assert_eq!(cpu_only(&config), None);
    let grouped = config.with("num_expert_group", 2.into());
    assert_eq!(cpu_only(&grouped), Some("routes tokens to groups of experts"));
}
