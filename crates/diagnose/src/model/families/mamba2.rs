//! Mamba-2: state-space duality alone, in transformers' config and in the one of state-spaces.

use super::{Family, layer};
use crate::model::config::{Config, Wrong};
use crate::model::layer::{Layer, LayerKind, Size, product};
use crate::model::parts;

pub(super) const FAMILY: Family = Family {
    name: "mamba2",
    known_by: &["mamba2", "Mamba2ForCausalLM"],
    demands: None,
    recognises: is_second,
    layers,
};

/// state-spaces' config names the second generation inside `ssm_cfg`.
pub(super) fn is_second(config: &Config) -> bool {
    config.part("ssm_cfg").is_some_and(|part| part.text("layer") == Some("Mamba2"))
}

fn layers(config: &Config) -> Result<Vec<Layer>, Wrong> {
    let count = config.layer_count()?;
    let hidden = config.number(&["hidden_size", "d_model"])?;
    let inner = product(&[hidden, config.optional(&["expand"]).unwrap_or(2)]);
    let head_dim = config.optional(&["head_dim"]).unwrap_or(64);
    let heads = match config.optional(&["num_heads"]) {
        Some(heads) => heads,
        None => inner.checked_div(head_dim).ok_or(Wrong::Key("head_dim".into()))?,
    };
    let mixer = parts::Mamba2 {
        hidden,
        heads,
        head_dim,
        state: config.optional(&["state_size"]).unwrap_or(128),
        // state-spaces' own models share one group; transformers' preset is 8.
        groups: config.optional(&["n_groups"]).unwrap_or(if config.has("ssm_cfg") { 1 } else { 8 }),
        kernel: config.optional(&["conv_kernel"]).unwrap_or(4),
        conv_bias: config.flag("use_conv_bias", true),
        proj_bias: config.flag("use_bias", false),
        norm: true,
    };
    Ok(vec![layer(LayerKind::Mamba2, Size::of(hidden) + mixer.size(config)); count])
}
