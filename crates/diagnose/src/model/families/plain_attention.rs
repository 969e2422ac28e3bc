//! Attention in every layer: Llama, Mistral, Qwen, Mixtral and what else has their keys.

use super::{Family, layer, norms};
use crate::model::config::{Config, Wrong};
use crate::model::layer::{Layer, LayerKind, Size};
use crate::model::parts;

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
        config.has("num_attention_heads")
            && config.has("hidden_size")
            && !recurrent.iter().any(|key| config.has(key))
            && config.words("layer_types").is_none_or(|words| {
                words.iter().all(|word| word.contains("attention") && !word.contains("linear"))
            })
    },
    layers,
};

fn layers(config: &Config) -> Result<Vec<Layer>, Wrong> {
    let count = config.layer_count()?;
    let hidden = config.number(&["hidden_size", "n_embd"])?;
    let latent = config.has("kv_lora_rank");
    let mixer = if latent { parts::latent_attention(config)? } else { parts::attention(config)? };
    let kind = if latent { LayerKind::LatentAttention } else { LayerKind::Attention };
    let dense_until = config.optional(&["first_k_dense_replace"]).unwrap_or(0) as usize;
    let experts =
        config.optional(&["num_local_experts", "num_experts", "n_routed_experts"]).unwrap_or(0);
    (0..count)
        .map(|index| {
            let feed_forward = match experts > 0 && index >= dense_until {
                true => of_experts(config, hidden, experts)?,
                false => parts::feed_forward(
                    hidden,
                    config.number(&["intermediate_size", "n_inner"])?,
                    3,
                ),
            };
            Ok(layer(kind, norms(hidden) + mixer + feed_forward))
        })
        .collect()
}

fn of_experts(config: &Config, hidden: u64, count: u64) -> Result<Size, Wrong> {
    let inner = config.number(&["moe_intermediate_size", "intermediate_size"])?;
    let shared = config.optional(&["n_shared_experts"]).unwrap_or(0).saturating_mul(inner);
    Ok(parts::experts(hidden, inner, count) + parts::feed_forward(hidden, shared, 3))
}
