//! Compares logits and hidden states of transformers' models with the CPU engine's: in float32, 1e-5 absolute for
//! logits, 5e-5 for hidden states.
//!
//! `cargo xtask test` installs a Python with transformers and names it in FIRSTLIGHT_TRANSFORMERS_PYTHON.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

use facts::BackendKind;
use models::{Batch, Capacity, LogitsSelection, Model, Storage, SynthOptions, open, shape, synth};
use std::path::{Path, PathBuf};
use std::process::Command;

/// No minimum of step sizes: transformers' Nemotron clamps in prefill, but not in decoding.
const ANY_STEP: (&str, &str) = ("time_step_min", "1e-30");

/// Shapes, and keys with other values as JSON. With several groups, transformers' Granite, Bamba and Mamba-2 normalize
/// all channels together, which no other implementation does: these have one group. Qwen3-Next and
/// OLMo Hybrid are not listed: in float32 transformers' delta rule differs from float64 by more than 1e-5.
const MODELS: &[(&str, &[(&str, &str)])] = &[
    ("nemotron-mini", &[ANY_STEP]),
    ("nemotron-mini", &[ANY_STEP, ("moe_latent_size", "32")]),
    ("falcon-h1-mini", &[]),
    ("falcon-h1-mini", &[("mamba_rms_norm", "true")]),
    ("falcon-h1-mini", &[("mamba_rms_norm", "true"), ("mamba_norm_before_gate", "true")]),
    ("lfm2-mini", &[]),
    ("lfm2-mini", &[("conv_bias", "true"), ("tie_embedding", "false")]),
    ("lfm2-moe-mini", &[("tie_embedding", "false")]),
    // transformers does not read its limits from a config.
    ("gpt-oss-mini", &[("swiglu_limit", "7.0")]),
    ("granite-hybrid-mini", &[]),
    ("granite-moe-mini", &[("mamba_n_groups", "1")]),
    ("granite-dense-mini", &[]),
    ("kimi-linear-mini", &[]),
    ("bamba-mini", &[("mamba_n_groups", "1")]),
    ("mamba2-mini", &[("n_groups", "1")]),
    ("mamba-mini", &[]),
    ("mamba-mini", &[("use_bias", "false"), ("tie_word_embeddings", "false")]),
    ("falcon-mamba-mini", &[]),
    ("jamba-mini", &[]),
    ("jamba-mini", &[("num_experts", "1"), ("mamba_proj_bias", "true")]),
    ("qwen3-moe-mini", &[]),
    ("qwen2-mini", &[]),
    ("llama-mini", GEMMA_3),
    ("qwen3-moe-mini", DEEPSEEK_V3),
    ("mistral-mini", &[]),
    ("llama-mini", &[]),
];

/// Gates by GELU, norms that add 1, a window in two layers.
const GEMMA_3: &[(&str, &str)] = &[
    ("model_type", r#""gemma3_text""#),
    ("architectures", r#"["Gemma3ForCausalLM"]"#),
    ("hidden_act", "null"),
    ("hidden_activation", r#""gelu_pytorch_tanh""#),
    ("head_dim", "16"),
    ("query_pre_attn_scalar", "24"),
    ("sliding_window", "5"),
    ("layer_types", r#"["sliding_attention", "full_attention", "sliding_attention"]"#),
];

/// Rotated latent attention with latent queries, a dense first layer, and a router that chooses among groups of experts.
const DEEPSEEK_V3: &[(&str, &str)] = &[
    ("model_type", r#""deepseek_v3""#),
    ("architectures", r#"["DeepseekV3ForCausalLM"]"#),
    ("num_key_value_heads", "4"),
    ("head_dim", "8"),
    ("q_lora_rank", "20"),
    ("kv_lora_rank", "24"),
    ("qk_nope_head_dim", "16"),
    ("qk_rope_head_dim", "8"),
    ("v_head_dim", "12"),
    ("n_routed_experts", "8"),
    ("num_experts", "null"),
    ("mlp_only_layers", "[]"),
    ("first_k_dense_replace", "1"),
    ("n_shared_experts", "1"),
    ("n_group", "4"),
    ("topk_group", "2"),
    ("routed_scaling_factor", "2.5"),
];

/// More tokens than a chunk of any scan has, and not a multiple of one.
const TOKENS: usize = 150;

#[test]
fn logits_match_transformers() {
    let python = std::env::var_os("FIRSTLIGHT_TRANSFORMERS_PYTHON").map(PathBuf::from);
    let python = python.expect("FIRSTLIGHT_TRANSFORMERS_PYTHON is not set: run `cargo xtask test`");
    let home = tempfile::tempdir().unwrap();
    let ids: Vec<u32> = (0..TOKENS as u32).map(|at| (at * 181 + 7) % 512).collect();
    let drawn = MODELS.iter().enumerate().map(|(at, (name, changes))| {
        let mut config = shape(name).unwrap();
        for (key, value) in *changes {
            config = config.with(key, serde_json::from_str(value).unwrap());
        }
        let folder = home.path().join(format!("{at}-{name}"));
        let options = SynthOptions { seed: 11, layers: None, shard_bytes: 100_000 };
        synth(config, &folder, &options).unwrap();
        std::fs::write(folder.join("ids.json"), serde_json::to_string(&ids).unwrap()).unwrap();
        folder
    });
    let folders: Vec<PathBuf> = drawn.collect();
    let said = Command::new(python)
        .args(["-I", "-c", include_str!("oracle.py")])
        .args(&folders)
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    let words = [said.stdout, said.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(said.status.success(), "{}", words.concat());
    let mut worse = Vec::new();
    for (folder, model) in folders.iter().zip(MODELS) {
        for (wanted, file) in
            [(LogitsSelection::Every, "logits.f32"), (LogitsSelection::Hidden, "hidden.f32")]
        {
            let off = distance(&ours(folder, &ids, wanted), &theirs(&folder.join(file)));
            println!("{model:?} {file}: {off:.1e}");
            // Hidden states are normalized to about 1; logits of these models are smaller.
            if !(off <= if wanted == LogitsSelection::Hidden { 5e-5 } else { 1e-5 }) {
                worse.push(format!("{model:?} {file} is {off:.2e} off"));
            }
        }
    }
    assert!(worse.is_empty(), "{}\n{}", worse.join("\n"), words[0]);
}

fn ours(folder: &Path, ids: &[u32], wanted: LogitsSelection) -> Vec<f32> {
    let device = backends::open(BackendKind::Cpu).unwrap();
    let capacity = Capacity { sequences: 1, tokens: TOKENS };
    let mut engine = open(Model::read(folder).unwrap(), device, Storage::F32, capacity).unwrap();
    engine.step(&Batch::new().with(0, ids), wanted).unwrap()
}

fn theirs(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    bytes.as_chunks().0.iter().map(|value| f32::from_ne_bytes(*value)).collect()
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    // A NaN is infinitely far.
    let off = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    off.fold(0.0, |most, off| if off > most || off.is_nan() { off } else { most })
}
