//! Granite 4.0-H: Mamba-2 with a few attention layers, experts beside a shared feed-forward part.

use super::{Family, is_attention, layer, norms, shared_mamba2, typed};
use crate::model::config::{Config, Wrong};
use crate::model::layer::{Layer, LayerKind};
use crate::model::parts;

pub(super) const FAMILY: Family = Family {
    name: "granite-hybrid",
    known_by: &["granitemoehybrid", "GraniteMoeHybridForCausalLM"],
    demands: None,
    recognises: |_| false,
    layers,
};

fn layers(config: &Config) -> Result<Vec<Layer>, Wrong> {
    let count = config.layer_count()?;
    let hidden = config.number(&["hidden_size"])?;
    // The dense Granite 4 models use the same class with attention everywhere.
    let types = typed(config, &["layer_types", "layers_block_type"])?
        .unwrap_or_else(|| vec!["attention"; count]);
    let shared = config.optional(&["shared_intermediate_size"]).unwrap_or(0);
    let mut rest = norms(hidden) + parts::feed_forward(hidden, shared, 3);
    if let Some(experts @ 1..) = config.optional(&["num_local_experts"]) {
        rest = rest + parts::experts(hidden, config.number(&["intermediate_size"])?, experts);
    }
    types
        .into_iter()
        .map(|word| {
            Ok(match is_attention(word) {
                true => layer(LayerKind::Attention, rest + parts::attention(config)?),
                false => layer(LayerKind::Mamba2, rest + shared_mamba2(config, true)?),
            })
        })
        .collect()
}
