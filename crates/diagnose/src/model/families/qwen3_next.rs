//! Qwen3-Next: gated delta net with full attention at every fourth layer, experts in all of them.

use super::{Family, is_attention, layer, norms, typed};
use crate::model::config::{Config, Wrong};
use crate::model::layer::{Layer, LayerKind, Size};
use crate::model::parts;

pub(super) const FAMILY: Family = Family {
    name: "qwen3-next",
    known_by: &["qwen3_next", "Qwen3NextForCausalLM", "qwen3_5_moe_text", "qwen3_5_text"],
    demands: None,
    recognises: |_| false,
    layers,
};

fn layers(config: &Config) -> Result<Vec<Layer>, Wrong> {
    let count = config.layer_count()? as u64;
    let hidden = config.number(&["hidden_size"])?;
    let interval = config.optional(&["full_attention_interval"]).unwrap_or(4).max(1);
    let types = typed(config, &["layer_types"])?;
    let dense = config.numbers("mlp_only_layers").unwrap_or_default();
    (0..count)
        .map(|index| {
            let rest = norms(hidden) + feed_forward(config, hidden, dense.contains(&index))?;
            let attention = match &types {
                Some(types) => is_attention(types[index as usize]),
                None => (index + 1) % interval == 0,
            };
            Ok(match attention {
                true => layer(LayerKind::Attention, rest + parts::attention(config)?),
                false => {
                    layer(LayerKind::GatedDeltaNet, rest + parts::gated_delta_net(config, hidden)?)
                }
            })
        })
        .collect()
}

fn feed_forward(config: &Config, hidden: u64, dense: bool) -> Result<Size, Wrong> {
    let experts = config.optional(&["num_experts"]).unwrap_or(0);
    if dense || experts == 0 {
        return Ok(parts::feed_forward(hidden, config.number(&["intermediate_size"])?, 3));
    }
    let shared = config.optional(&["shared_expert_intermediate_size"]).unwrap_or(0);
    let gate = if shared > 0 { hidden } else { 0 };
    Ok(parts::experts(hidden, config.number(&["moe_intermediate_size"])?, experts)
        + parts::feed_forward(hidden, shared, 3)
        + Size::of(gate))
}
