//! Falcon-H1: attention and Mamba-2 side by side in every layer.

use super::{Family, layer, norms, shared_mamba2};
use crate::model::config::{Config, Wrong};
use crate::model::layer::{Layer, LayerKind};
use crate::model::parts;

pub(super) const FAMILY: Family = Family {
    name: "falcon-h1",
    known_by: &["falcon_h1", "FalconH1ForCausalLM"],
    demands: None,
    recognises: |_| false,
    layers,
};

fn layers(config: &Config) -> Result<Vec<Layer>, Wrong> {
    let count = config.layer_count()?;
    let hidden = config.number(&["hidden_size"])?;
    let size = norms(hidden)
        + parts::feed_forward(hidden, config.number(&["intermediate_size"])?, 3)
        + parts::attention(config)?
        + shared_mamba2(config, config.flag("mamba_rms_norm", false))?;
    Ok(vec![layer(LayerKind::AttentionAndMamba2, size); count])
}
