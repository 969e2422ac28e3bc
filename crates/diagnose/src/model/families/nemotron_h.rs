//! Nemotron-H: a pattern of letters, one layer each: Mamba-2, attention, feed-forward without a gate, experts.

use super::{Family, layer};
use crate::model::config::{Config, Wrong};
use crate::model::layer::{Layer, LayerKind, Size};
use crate::model::parts;

pub(super) const FAMILY: Family = Family {
    name: "nemotron-h",
    known_by: &["nemotron_h", "NemotronHForCausalLM"],
    demands: Some(
        "The model's own code imports mamba-ssm when it is loaded and stops without it; transformers' own code takes a \
         slow path instead.",
    ),
    recognises: |_| false,
    layers,
};

fn layers(config: &Config) -> Result<Vec<Layer>, Wrong> {
    let hidden = config.number(&["hidden_size"])?;
    let kinds = kinds(config)?;
    if let Some(count) =
        config.optional(&["num_hidden_layers"]).filter(|count| *count != kinds.len() as u64)
    {
        return Err(Wrong::Contradiction(format!(
            "the layer pattern has {} letters for {count} layers",
            kinds.len()
        )));
    }
    let mixer = || -> Result<Size, Wrong> {
        let mixer = parts::Mamba2 {
            hidden,
            heads: config.number(&["mamba_num_heads"])?,
            head_dim: config.number(&["mamba_head_dim"])?,
            state: config.number(&["ssm_state_size"])?,
            groups: config.optional(&["n_groups", "mamba_n_groups"]).unwrap_or(8),
            kernel: config.optional(&["conv_kernel"]).unwrap_or(4),
            conv_bias: config.flag("use_conv_bias", true),
            proj_bias: config.flag("mamba_proj_bias", false),
            norm: true,
        };
        Ok(mixer.size(config))
    };
    kinds
        .into_iter()
        .map(|letter| {
            // One norm, since every layer has one part only.
            let norm = Size::of(hidden);
            Ok(match letter {
                'M' => layer(LayerKind::Mamba2, norm + mixer()?),
                '*' => layer(LayerKind::Attention, norm + parts::attention(config)?),
                'E' => layer(LayerKind::FeedForward, norm + experts(config, hidden)?),
                _ => {
                    let inner = config.number(&["intermediate_size"])?;
                    layer(LayerKind::FeedForward, norm + parts::feed_forward(hidden, inner, 2))
                }
            })
        })
        .collect()
}

/// The letters of the pattern, or of the list that newer configs have in its place.
fn kinds(config: &Config) -> Result<Vec<char>, Wrong> {
    if let Some(pattern) = config.text("hybrid_override_pattern") {
        let letters: Vec<char> = pattern.chars().collect();
        let known = |letter: &char| matches!(letter, 'M' | '*' | '-' | 'E');
        return match letters.iter().find(|letter| !known(letter)) {
            Some(letter) => {
                Err(Wrong::Contradiction(format!("`hybrid_override_pattern` has a `{letter}`")))
            }
            None if letters.is_empty() || letters.len() > 4096 => {
                Err(Wrong::Key("hybrid_override_pattern".into()))
            }
            None => Ok(letters),
        };
    }
    let list =
        config.words("layers_block_type").ok_or(Wrong::Key("hybrid_override_pattern".into()))?;
    Ok(list
        .into_iter()
        .map(|word| match word {
            "mamba" | "mamba2" => 'M',
            "attention" | "full_attention" => '*',
            "moe" => 'E',
            _ => '-',
        })
        .collect())
}

/// Experts without a gate, and the shared one beside them.
fn experts(config: &Config, hidden: u64) -> Result<Size, Wrong> {
    let count = config.number(&["n_routed_experts", "num_experts"])?;
    let inner = config.number(&["moe_intermediate_size"])?;
    let shared = config.optional(&["moe_shared_expert_intermediate_size"]).unwrap_or(0);
    let router = hidden.saturating_mul(count).saturating_add(count);
    Ok(parts::feed_forward(hidden, inner.saturating_mul(count), 2)
        + parts::feed_forward(hidden, shared, 2)
        + Size::of(router))
}
