//! Mamba: selective scans only, in transformers' and state-spaces' config.

use super::{ModelFamily, only_silu, only_with};
use crate::builder::{ArchitectureBuilder, OuterTensors};
use crate::layers::{Mamba1, Mamba1Shape, Norms};
use crate::{Architecture, Config, ConfigError, Layer, Mixer, NormPosition};

pub(super) const FAMILY: ModelFamily = ModelFamily {
    name: "mamba",
    config_names: &["mamba", "MambaForCausalLM", "MambaLMHeadModel"],
    multimodal_types: &[],
    without_kernels: None,
    // The first checkpoints have neither model_type nor architectures, only these keys.
    matches_keys: |config| {
        config.has("d_model") && config.has("ssm_cfg") && !super::mamba2::is_second(config)
    },
    read,
};

fn read(config: &Config, builder: ArchitectureBuilder) -> Result<Architecture, ConfigError> {
    read_with(config, builder, Norms::None)
}

/// [`read`] with norms in the mixers.
pub(super) fn read_with(
    config: &Config,
    mut builder: ArchitectureBuilder,
    norms: Norms,
) -> Result<Architecture, ConfigError> {
    builder.need(only_silu(config), ());
    builder.need(only_with(config, "rms_norm"), ());
    builder.model(config, outer_tensors(config, true), |builder| {
        let hidden = config.count(config.present_key(&["hidden_size", "d_model"]))?;
        let shape = Mamba1Shape {
            hidden,
            inner: match config.get("intermediate_size") {
                Some(_) => config.count("intermediate_size")?,
                None => hidden * config.size_or("expand", 2)?,
            },
            state: config.size_or("state_size", 16)?,
            taps: config.taps("conv_kernel")?,
            rank: Mamba1Shape::rank(config, "time_step_rank", hidden)?,
        };
        shape.check(config, "conv_kernel", builder);
        let biases = [config.flag_or("use_conv_bias", true)?, config.flag_or("use_bias", false)?];
        alone(config, builder, hidden, |builder, prefix| {
            let mixer = Mamba1::declare(&mut builder.params, prefix, shape, biases);
            Mixer::Mamba1(Mamba1 { norms, ..mixer })
        })
    })
}

/// Tensors outside of layers for Mamba-1 and Mamba-2. state-spaces' own files, recognized by `ssm_cfg`, have one
/// embedding and always tie it.
pub(super) fn outer_tensors(config: &Config, tied: bool) -> OuterTensors {
    let own = config.has("ssm_cfg");
    let embedding = if own { "embedding" } else { "embeddings" };
    OuterTensors {
        embedding: format!("backbone.{embedding}.weight"),
        norm: "backbone.norm_f.weight".to_owned(),
        tied: tied || own,
    }
}

/// Layers of one norm and one mixer each.
pub(super) fn alone(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    hidden: usize,
    mixer: impl Fn(&mut ArchitectureBuilder, &str) -> Mixer,
) -> Result<Vec<Layer>, ConfigError> {
    let layer = |index: usize| {
        let prefix = format!("backbone.layers.{index}");
        let norm = builder.params.norm(format!("{prefix}.norm.weight"), hidden);
        let mixer = mixer(builder, &format!("{prefix}.mixer"));
        Layer {
            norm_position: NormPosition::Pre,
            input_norm: norm,
            mixer,
            post_norm: norm,
            experts: None,
            mlp: None,
        }
    };
    Ok((0..config.layer_count()?).map(layer).collect())
}
