//! Attention in every layer: Llama, Mistral, Qwen, Mixtral and what else has their keys.
//!
//! A config that is recognised by its keys alone is described with Llama's names.

use super::{Family, rope_theta};
use crate::draft::{Around, Draft};
use crate::layers::{
    Attention, AttentionShape, Experts, GatedMlp, LatentAttention, LatentShape, Score,
};
use crate::{Architecture, Config, ConfigError, Layer, Mixer};

pub(super) const FAMILY: Family = Family {
    name: "plain-attention",
    known_by: &[
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "granite",
        "phi3",
        "LlamaForCausalLM",
    ],
    runs: false,
    demands: None,
    // A config that mentions a recurrent layer and is of no family above is not taken for plain attention.
    recognises: |config| {
        let recurrent = [
            "mamba_d_state",
            "ssm_state_size",
            "linear_attn_config",
            "linear_key_head_dim",
            "state_size",
            "hybrid_override_pattern",
            "ssm_cfg",
            "rwkv_version",
            "lru_width",
        ];
        let of_attention = |word: &String| word.contains("attention") && !word.contains("linear");
        config.has("num_attention_heads")
            && config.has("hidden_size")
            && !recurrent.iter().any(|key| config.has(key))
            && match config.words(&["layer_types"]) {
                Ok(Some((_, words))) => words.iter().all(of_attention),
                _ => true,
            }
    },
    read,
};

const EXPERTS: &[&str] = &["num_local_experts", "num_experts", "n_routed_experts"];

fn read(config: &Config, draft: Draft) -> Result<Architecture, ConfigError> {
    let tied = matches!(config.kind(), Some("gemma" | "gemma2" | "gemma3_text"));
    draft.model(config, Around { tied, ..Around::under("model", "norm") }, |draft| {
        (0..config.layer_count()?).map(|index| layer(config, draft, index)).collect()
    })
}

fn layer(config: &Config, draft: &mut Draft, index: usize) -> Result<Layer, ConfigError> {
    let prefix = format!("model.layers.{index}");
    let hidden = config.count(config.spelled(&["hidden_size", "n_embd"]))?;
    let input_norm = draft.params.norm(format!("{prefix}.input_layernorm.weight"), hidden);
    let attention = format!("{prefix}.self_attn");
    let mixer = if config.has("kv_lora_rank") {
        let (shape, q_rank) = (LatentShape::of(config)?, config.count_unless_auto("q_lora_rank")?);
        Mixer::Latent(LatentAttention::declare(&mut draft.params, &attention, shape, q_rank))
    } else {
        let rope_theta = draft.need(rope_theta(config).map(Some), None);
        let shape = AttentionShape { rope_theta, ..AttentionShape::of(config)? };
        let kind = config.kind().unwrap_or_default();
        let shape = AttentionShape {
            normed: matches!(kind, "qwen3" | "qwen3_moe"),
            biases: if kind == "qwen2" { [true, false] } else { shape.biases },
            fused: kind == "phi3",
            ..shape
        };
        Mixer::Attention(Attention::declare(&mut draft.params, &attention, shape))
    };
    let post_norm = draft.params.norm(format!("{prefix}.post_attention_layernorm.weight"), hidden);
    let (experts, mlp) = match config.expert_count(EXPERTS, 0)? {
        count if count > 0 && index >= config.count_or("first_k_dense_replace", 0)? => {
            let (experts, shared) = experts(config, draft, &prefix, [hidden, count])?;
            (Some(experts), shared)
        }
        _ => {
            let inner = config.count(config.spelled(&["intermediate_size", "n_inner"]))?;
            let (params, prefix) = (&mut draft.params, format!("{prefix}.mlp"));
            let names = ["gate_up_proj", "down_proj"];
            let mlp = match config.kind() {
                Some("phi3") => GatedMlp::of_two(params, &prefix, names, [hidden, inner], true),
                _ => GatedMlp::usual(params, &prefix, [hidden, inner]),
            };
            (None, Some(mlp))
        }
    };
    Ok(Layer { input_norm, mixer, post_norm, experts, mlp })
}

/// Mixtral's experts have names of their own; some models have shared experts beside the routed ones.
fn experts(
    config: &Config,
    draft: &mut Draft,
    prefix: &str,
    [hidden, count]: [usize; 2],
) -> Result<(Experts, Option<GatedMlp>), ConfigError> {
    let inner = config.count(config.spelled(&["moe_intermediate_size", "intermediate_size"]))?;
    let (prefix, names) = match config.kind() {
        Some("mixtral") => (format!("{prefix}.block_sparse_moe"), ["w1", "w3", "w2"]),
        _ => (format!("{prefix}.mlp"), ["gate_proj", "up_proj", "down_proj"]),
    };
    let per_token = draft.per_token(config, &["num_experts_per_tok"], count);
    let params = &mut draft.params;
    let router = params.projection(format!("{prefix}.gate.weight"), count, hidden);
    let expert = |e: usize| {
        GatedMlp::declare(params, &format!("{prefix}.experts.{e}"), names, [hidden, inner])
    };
    let experts = (0..count).map(expert).collect();
    let shared = match config.count_or("n_shared_experts", 0)? {
        0 => None,
        shared => {
            let widths = [hidden, shared * inner];
            Some(GatedMlp::usual(params, &format!("{prefix}.shared_experts"), widths))
        }
    };
    Ok((Experts { router, score: Score::SoftmaxOfChosen, per_token, experts }, shared))
}
