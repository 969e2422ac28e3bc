//! Mamba: selective scans alone, in transformers' config and in the one of state-spaces.

use super::{Family, layer};
use crate::model::config::{Config, Wrong};
use crate::model::layer::{Layer, LayerKind, Size, product};
use crate::model::parts;

pub(super) const FAMILY: Family = Family {
    name: "mamba",
    known_by: &[
        "mamba",
        "falcon_mamba",
        "MambaForCausalLM",
        "FalconMambaForCausalLM",
        "MambaLMHeadModel",
    ],
    demands: None,
    // The first checkpoints have neither model_type nor architectures, only these keys.
    recognises: |config| {
        config.has("d_model") && config.has("ssm_cfg") && !super::mamba2::is_second(config)
    },
    layers,
};

fn layers(config: &Config) -> Result<Vec<Layer>, Wrong> {
    let count = config.layer_count()?;
    let hidden = config.number(&["hidden_size", "d_model"])?;
    let inner = match config.optional(&["intermediate_size"]) {
        Some(inner) => inner,
        None => product(&[hidden, config.optional(&["expand"]).unwrap_or(2)]),
    };
    // "auto" is a 16th of the width.
    let rank = config.optional(&["time_step_rank"]).unwrap_or(hidden.div_ceil(16));
    let shape = [
        hidden,
        inner,
        config.optional(&["state_size"]).unwrap_or(16),
        config.optional(&["conv_kernel"]).unwrap_or(4),
        rank,
    ];
    let biases = (config.flag("use_conv_bias", true), config.flag("use_bias", false));
    let size = Size::of(hidden) + parts::mamba1(config, shape, false, biases);
    Ok(vec![layer(LayerKind::Mamba1, size); count])
}
