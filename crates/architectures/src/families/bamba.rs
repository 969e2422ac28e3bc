//! Bamba: Mamba-2 with attention in listed layers.

use super::{ModelFamily, attends, only_silu};
use crate::builder::{ArchitectureBuilder, OuterTensors};
use crate::layers::{Attention, AttentionShape, GatedMlp, Mamba2, Mamba2Shape};
use crate::rope::RotaryFraction;
use crate::{Architecture, Config, ConfigError, Layer, Mixer, NormPosition, Rope};

pub(super) const FAMILY: ModelFamily = ModelFamily {
    name: "bamba",
    config_names: &["bamba", "BambaForCausalLM"],
    multimodal_types: &[],
    without_kernels: None,
    matches_keys: |_| false,
    read,
};

fn read(config: &Config, mut builder: ArchitectureBuilder) -> Result<Architecture, ConfigError> {
    builder.need(only_silu(config), ());
    builder.model(config, OuterTensors::with_prefix("model", "final_layernorm"), |builder| {
        let listed = config.counts("attn_layer_indices")?.unwrap_or_default();
        let attends = match attends(config, "mamba")? {
            Some(attends) => attends,
            None => (0..config.layer_count()?).map(|index| listed.contains(&index)).collect(),
        };
        let layers = attends.into_iter().enumerate();
        layers.map(|(index, attends)| layer(config, builder, index, attends)).collect()
    })
}

fn layer(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    index: usize,
    attends: bool,
) -> Result<Layer, ConfigError> {
    let prefix = format!("model.layers.{index}");
    let widths = [config.count("hidden_size")?, config.count("intermediate_size")?];
    let input_norm = builder.params.norm(format!("{prefix}.input_layernorm.weight"), widths[0]);
    let mixer = if attends {
        let shape = AttentionShape::of(config)?;
        // transformers rotates half of a head's channels, whatever the config says.
        let rope = builder
            .need(Rope::of(config, shape.head_dim, RotaryFraction::Named(0.5)).map(Some), None);
        let shape = AttentionShape { rope, ..shape };
        let prefix = format!("{prefix}.self_attn");
        Mixer::Attention(Attention::declare(&mut builder.params, &prefix, shape))
    } else {
        let shape = Mamba2Shape::of(config, builder)?;
        let biases =
            [config.flag_or("mamba_conv_bias", true)?, config.flag_or("mamba_proj_bias", false)?];
        let prefix = format!("{prefix}.mamba");
        Mixer::Mamba2(Mamba2::declare(&mut builder.params, &prefix, shape, biases))
    };
    let post_norm = builder.params.norm(format!("{prefix}.pre_ff_layernorm.weight"), widths[0]);
    let mlp = GatedMlp::llama(&mut builder.params, &format!("{prefix}.feed_forward"), widths);
    Ok(Layer {
        norm_position: NormPosition::Pre,
        input_norm,
        mixer,
        post_norm,
        experts: None,
        mlp: Some(mlp),
    })
}
