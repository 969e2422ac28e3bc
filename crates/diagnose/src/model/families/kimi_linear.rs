//! Kimi Linear: KDA with latent attention at listed places (counted from 1), experts after the first layers.

use super::{Family, layer, norms};
use crate::model::config::{Config, Wrong};
use crate::model::layer::{Layer, LayerKind, Size};
use crate::model::parts;

pub(super) const FAMILY: Family = Family {
    name: "kimi-linear",
    known_by: &["kimi_linear", "KimiLinearForCausalLM"],
    demands: Some(
        "The model's own code imports fla when it is loaded and stops without it; transformers' own code takes a slow \
         path instead.",
    ),
    recognises: |_| false,
    layers,
};

fn layers(config: &Config) -> Result<Vec<Layer>, Wrong> {
    let count = config.layer_count()? as u64;
    let hidden = config.number(&["hidden_size"])?;
    let linear =
        config.part("linear_attn_config").ok_or(Wrong::Key("linear_attn_config".into()))?;
    let full = linear.numbers("full_attn_layers").ok_or(Wrong::Key("full_attn_layers".into()))?;
    let heads = linear.number(&["num_heads"])?;
    let dim = linear.number(&["head_dim"])?;
    let kernel = linear.number(&["short_conv_kernel_size"])?;
    (0..count)
        .map(|index| {
            let rest = norms(hidden) + feed_forward(config, hidden, index)?;
            // These lists count from 1.
            Ok(match full.contains(&(index + 1)) {
                true => layer(LayerKind::LatentAttention, rest + parts::latent_attention(config)?),
                false => {
                    layer(LayerKind::Kda, rest + parts::kda(config, hidden, heads, dim, kernel))
                }
            })
        })
        .collect()
}

fn feed_forward(config: &Config, hidden: u64, index: u64) -> Result<Size, Wrong> {
    let dense = config.optional(&["first_k_dense_replace"]).unwrap_or(0);
    let experts = config.optional(&["num_experts"]).unwrap_or(0);
    if index < dense || experts == 0 {
        return Ok(parts::feed_forward(hidden, config.number(&["intermediate_size"])?, 3));
    }
    let inner = config.number(&["moe_intermediate_size"])?;
    let shared = config.optional(&["num_shared_experts"]).unwrap_or(0);
    // The router corrects its choice by one bias an expert.
    Ok(parts::experts(hidden, inner, experts)
        + parts::feed_forward(hidden, inner.saturating_mul(shared), 3)
        + Size::of(experts))
}
