//! Bamba: Mamba-2 with attention at listed places.

use super::{Family, is_attention, layer, norms, shared_mamba2, typed};
use crate::model::config::{Config, Wrong};
use crate::model::layer::{Layer, LayerKind};
use crate::model::parts;

pub(super) const FAMILY: Family = Family {
    name: "bamba",
    known_by: &["bamba", "BambaForCausalLM"],
    demands: None,
    recognises: |_| false,
    layers,
};

fn layers(config: &Config) -> Result<Vec<Layer>, Wrong> {
    let count = config.layer_count()?;
    let hidden = config.number(&["hidden_size"])?;
    let rest =
        norms(hidden) + parts::feed_forward(hidden, config.number(&["intermediate_size"])?, 3);
    let types = typed(config, &["layer_types", "layers_block_type"])?;
    let listed = config.numbers("attn_layer_indices").unwrap_or_default();
    (0..count)
        .map(|index| {
            let attention = match &types {
                Some(types) => is_attention(types[index]),
                None => listed.contains(&(index as u64)),
            };
            Ok(match attention {
                true => layer(LayerKind::Attention, rest + parts::attention(config)?),
                false => layer(LayerKind::Mamba2, rest + shared_mamba2(config, true)?),
            })
        })
        .collect()
}
