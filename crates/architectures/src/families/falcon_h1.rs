//! Falcon-H1: attention and Mamba-2 in parallel in every layer, with multipliers (muP) of projections.

use super::{ModelFamily, only_silu, only_without};
use crate::builder::{ArchitectureBuilder, OuterTensors};
use crate::layers::{
    Attention, AttentionShape, GatedMlp, Mamba2, Mamba2Shape, MambaMultipliers, Parallel,
};
use crate::rope::RotaryFraction;
use crate::{Architecture, Config, ConfigError, Layer, Mixer, NormPosition, Rope};

pub(super) const FAMILY: ModelFamily = ModelFamily {
    name: "falcon-h1",
    config_names: &["falcon_h1", "FalconH1ForCausalLM"],
    multimodal_types: &[],
    without_kernels: None,
    matches_keys: |_| false,
    read,
};

fn read(config: &Config, mut builder: ArchitectureBuilder) -> Result<Architecture, ConfigError> {
    builder.need(only_silu(config), ());
    for bias in ["attention_bias", "mamba_proj_bias", "projectors_bias", "mlp_bias"] {
        builder.need(only_without(config, bias), ());
    }
    let embedding_multiplier = multiplier(config, &mut builder, "embedding_multiplier");
    let logits = nonzero(config, &mut builder, "lm_head_multiplier");
    let described = builder.model(
        config,
        OuterTensors::with_prefix("model", "final_layernorm"),
        |builder| (0..config.layer_count()?).map(|index| layer(config, builder, index)).collect(),
    )?;
    Ok(Architecture { embedding_multiplier, logits_divisor: 1.0 / logits, ..described })
}

/// A multiplier, 1 by default.
fn multiplier(config: &Config, builder: &mut ArchitectureBuilder, key: &str) -> f64 {
    builder.need(config.number_or(key, 1.0), f64::NAN)
}

fn nonzero(config: &Config, builder: &mut ArchitectureBuilder, key: &str) -> f64 {
    let multiplier = multiplier(config, builder, key);
    if multiplier == 0.0 {
        builder.refuse(config.wrong(key, NOT_ZERO));
    }
    multiplier
}

const NOT_ZERO: &str = "numbers other than 0";

/// A list of nonzero multipliers.
fn multipliers<const N: usize>(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    key: &str,
) -> [f64; N] {
    let multipliers = builder.need(config.multipliers(key), [f64::NAN; N]);
    if multipliers.contains(&0.0) {
        builder.refuse(config.wrong(key, NOT_ZERO));
    }
    multipliers
}

fn layer(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    index: usize,
) -> Result<Layer, ConfigError> {
    let prefix = format!("model.layers.{index}");
    let widths = [config.count("hidden_size")?, config.count("intermediate_size")?];
    let input_norm = builder.params.norm(format!("{prefix}.input_layernorm.weight"), widths[0]);
    let shape = attention_shape(config, builder)?;
    let attention = Attention::declare(&mut builder.params, &format!("{prefix}.self_attn"), shape);
    let mamba = mamba(config, builder, &format!("{prefix}.mamba"))?;
    let post_norm = builder.params.norm(format!("{prefix}.pre_ff_layernorm.weight"), widths[0]);
    let mlp = GatedMlp {
        multipliers: multipliers(config, builder, "mlp_multipliers"),
        ..GatedMlp::llama(&mut builder.params, &format!("{prefix}.feed_forward"), widths)
    };
    let mixer = Mixer::Parallel(Box::new(Parallel { attention, mamba }));
    Ok(Layer {
        norm_position: NormPosition::Pre,
        input_norm,
        mixer,
        post_norm,
        experts: None,
        mlp: Some(mlp),
    })
}

fn attention_shape(
    config: &Config,
    builder: &mut ArchitectureBuilder,
) -> Result<AttentionShape, ConfigError> {
    let shape = AttentionShape::of(config)?;
    let mut multiplier = |key| multiplier(config, builder, key);
    Ok(AttentionShape {
        // The key multiplier affects only products with queries.
        scale: shape.scale * multiplier("key_multiplier"),
        multipliers: ["attention_in_multiplier", "attention_out_multiplier"].map(&mut multiplier),
        rope: builder.need(Rope::of(config, shape.head_dim, RotaryFraction::All).map(Some), None),
        ..shape
    })
}

fn mamba(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    prefix: &str,
) -> Result<Mamba2, ConfigError> {
    let shape = Mamba2Shape::of(config, builder)?;
    let biases =
        [config.flag_or("mamba_conv_bias", true)?, config.flag_or("mamba_proj_bias", false)?];
    let input = nonzero(config, builder, "ssm_in_multiplier");
    let parts =
        multipliers(config, builder, "ssm_multipliers").map(|multiplier| input * multiplier);
    let multipliers =
        MambaMultipliers { parts, output: multiplier(config, builder, "ssm_out_multiplier") };
    let norm_before_gate = builder.need(config.flag_or("mamba_norm_before_gate", true), true);
    let has_norm = config.flag_or("mamba_rms_norm", false)?;
    let declared = match has_norm {
        true => Mamba2::declare(&mut builder.params, prefix, shape, biases),
        false => Mamba2::without_norm(&mut builder.params, prefix, shape, biases),
    };
    Ok(Mamba2 {
        norm_before_gate: has_norm && norm_before_gate,
        ..declared.with_multipliers(multipliers)
    })
}
