//! Mamba-2: state-space duality only, in transformers' and state-spaces' config.
//!
//! With several groups transformers normalizes all channels together, mamba_ssm and vLLM each group, as here.

use super::mamba::{alone, outer_tensors};
use super::{ModelFamily, only_silu, only_with, only_without};
use crate::builder::ArchitectureBuilder;
use crate::layers::{Mamba2, Mamba2Shape, UNLIMITED_DT};
use crate::{Architecture, Config, ConfigError, Mixer};

pub(super) const FAMILY: ModelFamily = ModelFamily {
    name: "mamba2",
    config_names: &["mamba2", "Mamba2ForCausalLM"],
    multimodal_types: &[],
    without_kernels: None,
    matches_keys: is_second,
    read,
};

/// Whether state-spaces' config names Mamba-2 inside `ssm_cfg`.
pub(super) fn is_second(config: &Config) -> bool {
    config.get("ssm_cfg").and_then(|part| part.get("layer")?.as_str()) == Some("Mamba2")
}

fn read(config: &Config, mut builder: ArchitectureBuilder) -> Result<Architecture, ConfigError> {
    builder.need(only_silu(config), ());
    builder.need(only_without(config, "norm_before_gate"), ());
    builder.need(only_with(config, "rms_norm"), ());
    builder.model(config, outer_tensors(config, false), |builder| {
        let hidden = config.count(config.present_key(&["hidden_size", "d_model"]))?;
        let head_dim = config.count_unless_auto("head_dim")?.unwrap_or(64);
        let inner = hidden * config.size_or("expand", 2)?;
        // state-spaces' own models have one group; transformers' default is 8.
        let groups = if config.has("ssm_cfg") { 1 } else { 8 };
        let shape = Mamba2Shape {
            hidden,
            heads: config.count_unless_auto("num_heads")?.unwrap_or(inner / head_dim),
            head_dim,
            groups: config.count_or("n_groups", groups)?.max(1),
            state: config.size_or("state_size", 128)?,
            taps: config.taps("conv_kernel")?,
            dt_limits: builder.need(config.limits("time_step_limit", UNLIMITED_DT), UNLIMITED_DT),
        };
        shape.check(config, ["n_groups", "conv_kernel"], builder)?;
        let biases = [config.flag_or("use_conv_bias", true)?, config.flag_or("use_bias", false)?];
        alone(config, builder, hidden, |builder, prefix| {
            Mixer::Mamba2(Mamba2::declare(&mut builder.params, prefix, shape, biases))
        })
    })
}
