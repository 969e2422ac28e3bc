//! Jamba: Mamba-1 with attention at every so many layers, experts at every other.

use super::{Family, layer, norms, typed};
use crate::model::config::{Config, Wrong};
use crate::model::layer::{Layer, LayerKind, product};
use crate::model::parts;

pub(super) const FAMILY: Family = Family {
    name: "jamba",
    known_by: &["jamba", "JambaForCausalLM"],
    demands: Some(
        "transformers refuses to run Jamba without the kernels (\"Fast Mamba kernels are not available\") unless \
         use_mamba_kernels is false in its config; then a sequential loop runs.",
    ),
    recognises: |_| false,
    layers,
};

fn layers(config: &Config) -> Result<Vec<Layer>, Wrong> {
    let count = config.layer_count()? as u64;
    let hidden = config.number(&["hidden_size"])?;
    let every = |period: &str, offset: &str, preset: (u64, u64)| {
        let period = config.optional(&[period]).unwrap_or(preset.0).max(1);
        let offset = config.optional(&[offset]).unwrap_or(preset.1);
        move |index: u64| index % period == offset % period
    };
    let attends = every("attn_layer_period", "attn_layer_offset", (8, 4));
    let has_experts = every("expert_layer_period", "expert_layer_offset", (2, 1));
    let types = typed(config, &["layer_types", "layers_block_type"])?;
    let experts = config.optional(&["num_experts"]).unwrap_or(16);
    let inner = config.number(&["intermediate_size"])?;
    let rank = config.optional(&["mamba_dt_rank"]).unwrap_or(hidden.div_ceil(16));
    let shape = [
        hidden,
        product(&[hidden, config.optional(&["mamba_expand"]).unwrap_or(2)]),
        config.optional(&["mamba_d_state"]).unwrap_or(16),
        config.optional(&["mamba_d_conv"]).unwrap_or(4),
        rank,
    ];
    let biases = (config.flag("mamba_conv_bias", true), config.flag("mamba_proj_bias", false));
    (0..count)
        .map(|index| {
            let attention = match &types {
                Some(types) => super::is_attention(types[index as usize]),
                None => attends(index),
            };
            let rest = norms(hidden)
                + match has_experts(index) && experts > 1 {
                    true => parts::experts(hidden, inner, experts),
                    false => parts::feed_forward(hidden, inner, 3),
                };
            Ok(match attention {
                true => layer(LayerKind::Attention, rest + parts::attention(config)?),
                false => {
                    layer(LayerKind::Mamba1, rest + parts::mamba1(config, shape, true, biases))
                }
            })
        })
        .collect()
}
