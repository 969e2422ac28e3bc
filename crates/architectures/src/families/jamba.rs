//! Jamba: Mamba-1 with periodic attention layers, and experts in every other layer.

use super::{ModelFamily, attends, only_silu, only_with};
use crate::builder::{ArchitectureBuilder, OuterTensors};
use crate::layers::{
    Attention, AttentionShape, ExpertLayout, Experts, ExpertsShape, GatedMlp, Mamba1, Mamba1Shape,
    RouterScore,
};
use crate::{Architecture, Config, ConfigError, Layer, Mixer, NormPosition};

pub(super) const FAMILY: ModelFamily = ModelFamily {
    name: "jamba",
    config_names: &["jamba", "JambaForCausalLM"],
    multimodal_types: &[],
    without_kernels: Some(
        "transformers refuses to run Jamba without the kernels (\"Fast Mamba kernels are not available\") unless \
         use_mamba_kernels is false in its config; then a sequential loop runs.",
    ),
    matches_keys: |_| false,
    read,
};

fn read(config: &Config, mut builder: ArchitectureBuilder) -> Result<Architecture, ConfigError> {
    builder.need(only_silu(config), ());
    builder.need(only_with(config, "mamba_inner_layernorms"), ());
    builder.model(config, OuterTensors::with_prefix("model", "final_layernorm"), |builder| {
        let count = config.layer_count()?;
        let attends = match attends(config, "mamba")? {
            Some(attends) => attends,
            None => every(config, count, ["attn_layer_period", "attn_layer_offset"], [8, 4])?,
        };
        let routed = every(config, count, ["expert_layer_period", "expert_layer_offset"], [2, 1])?;
        let layers = attends.into_iter().zip(routed).enumerate();
        layers.map(|(index, parts)| layer(config, builder, index, parts)).collect()
    })
}

/// The layers of a period and an offset.
fn every(
    config: &Config,
    count: usize,
    [period, offset]: [&str; 2],
    usual: [usize; 2],
) -> Result<Vec<bool>, ConfigError> {
    let period = config.count_or(period, usual[0])?.max(1);
    let offset = config.count_or(offset, usual[1])?;
    Ok((0..count).map(|index| index % period == offset % period).collect())
}

fn layer(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    index: usize,
    (attends, routed): (bool, bool),
) -> Result<Layer, ConfigError> {
    let prefix = format!("model.layers.{index}");
    let widths = [config.count("hidden_size")?, config.count("intermediate_size")?];
    let input_norm = builder.params.norm(format!("{prefix}.input_layernorm.weight"), widths[0]);
    let mixer = if attends {
        let (prefix, shape) = (format!("{prefix}.self_attn"), AttentionShape::of(config)?);
        Mixer::Attention(Attention::declare(&mut builder.params, &prefix, shape))
    } else {
        let (prefix, shape) = (format!("{prefix}.mamba"), mamba_shape(config)?);
        shape.check(config, "mamba_d_conv", builder);
        let biases =
            [config.flag_or("mamba_conv_bias", true)?, config.flag_or("mamba_proj_bias", false)?];
        let mixer = Mamba1::declare(&mut builder.params, &prefix, shape, biases);
        Mixer::Mamba1(mixer.normed(&mut builder.params, &prefix))
    };
    let post_norm = builder.params.norm(format!("{prefix}.pre_ff_layernorm.weight"), widths[0]);
    let prefix = format!("{prefix}.feed_forward");
    let (experts, mlp) = match config.expert_count(&["num_experts"], 16)? {
        count if routed && count > 1 => {
            let per_token = builder.per_token(config, &["num_experts_per_tok"], count);
            let router = format!("{prefix}.router.weight");
            let router = builder.params.projection(router, count, widths[0]);
            let [hidden, inner] = widths;
            let shape = ExpertsShape { prefix: &prefix, count, hidden, inner, gated: true };
            let names = ExpertLayout::Each(["gate_proj", "up_proj", "down_proj"]);
            let experts = shape.declare(&mut builder.params, names);
            (
                Some(Experts {
                    router,
                    score: RouterScore::SoftmaxOfAll,
                    per_token,
                    latent: None,
                    clamped: None,
                    experts,
                    first: 0,
                }),
                None,
            )
        }
        _ => (None, Some(GatedMlp::llama(&mut builder.params, &prefix, widths))),
    };
    Ok(Layer { norm_position: NormPosition::Pre, input_norm, mixer, post_norm, experts, mlp })
}

fn mamba_shape(config: &Config) -> Result<Mamba1Shape, ConfigError> {
    let hidden = config.count("hidden_size")?;
    Ok(Mamba1Shape {
        hidden,
        inner: hidden * config.size_or("mamba_expand", 2)?,
        state: config.size_or("mamba_d_state", 16)?,
        taps: config.taps("mamba_d_conv")?,
        rank: Mamba1Shape::rank(config, "mamba_dt_rank", hidden)?,
    })
}
