//! Granite 4.0: Mamba-2 with a few attention layers, or attention in every layer; a shared MLP, with or without routed
//! experts.
//!
//! Follows transformers' GraniteMoeHybrid. With more than one group, transformers' torch path normalizes all channels
//! together; mamba_ssm's fused kernel and vLLM normalize each group, as is done here. All published models have one
//! group.

use super::{ModelFamily, attends, only_silu, only_without};
use crate::builder::{ArchitectureBuilder, OuterTensors};
use crate::layers::{
    Attention, AttentionShape, ExpertLayout, Experts, ExpertsShape, GatedMlp, Mamba2, Mamba2Shape,
    RouterScore,
};
use crate::rope::RotaryFraction;
use crate::{Architecture, Config, ConfigError, Layer, Mixer, NormPosition, Rope};

pub(super) const FAMILY: ModelFamily = ModelFamily {
    name: "granite-hybrid",
    config_names: &["granitemoehybrid", "GraniteMoeHybridForCausalLM"],
    multimodal_types: &[],
    without_kernels: None,
    matches_keys: |_| false,
    read,
};

fn read(config: &Config, mut builder: ArchitectureBuilder) -> Result<Architecture, ConfigError> {
    builder.need(only_silu(config), ());
    builder.need(only_without(config, "attention_bias"), ());
    let embedding_multiplier = builder.number(config, "embedding_multiplier");
    let residual_multiplier = builder.number(config, "residual_multiplier");
    let logits_divisor = builder.number(config, "logits_scaling");
    if logits_divisor == 0.0 {
        builder.refuse(config.wrong("logits_scaling", "a number other than 0"));
    }
    let described = builder.model(config, OuterTensors::llama(), |builder| {
        let missing = || config.missing("layer_types", "the kind of each layer");
        let attends = attends(config, "mamba")?.ok_or_else(missing)?;
        let layers = attends.into_iter().enumerate();
        layers.map(|(index, attends)| layer(config, builder, index, attends)).collect()
    })?;
    Ok(Architecture { embedding_multiplier, residual_multiplier, logits_divisor, ..described })
}

fn layer(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    index: usize,
    attends: bool,
) -> Result<Layer, ConfigError> {
    let prefix = format!("model.layers.{index}");
    let hidden = config.count("hidden_size")?;
    let input_norm = builder.params.norm(format!("{prefix}.input_layernorm.weight"), hidden);
    let mixer = if attends {
        let shape = attention_shape(config, builder)?;
        let prefix = format!("{prefix}.self_attn");
        Mixer::Attention(Attention::declare(&mut builder.params, &prefix, shape))
    } else {
        let shape = Mamba2Shape::of(config, builder)?;
        let biases =
            [config.flag_or("mamba_conv_bias", true)?, config.flag_or("mamba_proj_bias", false)?];
        let prefix = format!("{prefix}.mamba");
        Mixer::Mamba2(Mamba2::declare(&mut builder.params, &prefix, shape, biases))
    };
    let post_norm =
        builder.params.norm(format!("{prefix}.post_attention_layernorm.weight"), hidden);
    let experts = match config.expert_count(&["num_local_experts"], 0)? {
        0 => None,
        count => Some(experts(config, builder, &format!("{prefix}.block_sparse_moe"), count)?),
    };
    let mlp = GatedMlp::with_fused_gate(
        &mut builder.params,
        &format!("{prefix}.shared_mlp"),
        ["input_linear", "output_linear"],
        [hidden, config.count("shared_intermediate_size")?],
        true,
    );
    Ok(Layer {
        norm_position: NormPosition::Pre,
        input_norm,
        mixer,
        post_norm,
        experts,
        mlp: Some(mlp),
    })
}

fn attention_shape(
    config: &Config,
    builder: &mut ArchitectureBuilder,
) -> Result<AttentionShape, ConfigError> {
    let shape = AttentionShape::of(config)?;
    let rotated = match config.text("position_embedding_type") {
        Ok(Some("rope")) => Rope::of(config, shape.head_dim, RotaryFraction::All).map(Some),
        Ok(None | Some("nope")) => Ok(None),
        Ok(Some(_)) => Err(config.wrong("position_embedding_type", "rope or nope")),
        Err(error) => Err(error),
    };
    Ok(AttentionShape {
        scale: builder.number(config, "attention_multiplier"),
        rope: builder.need(rotated, None),
        ..shape
    })
}

fn experts(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    prefix: &str,
    count: usize,
) -> Result<Experts, ConfigError> {
    let hidden = config.count("hidden_size")?;
    let inner = config.count("intermediate_size")?;
    let per_token = builder.per_token(config, &["num_experts_per_tok"], count);
    let names = ["input_linear.weight", "output_linear.weight"];
    let shape = ExpertsShape { prefix, count, hidden, inner, gated: true };
    let experts = shape.declare(&mut builder.params, ExpertLayout::Stacked(names));
    let router = format!("{prefix}.router.layer.weight");
    let router = builder.params.projection(router, count, hidden);
    Ok(Experts {
        router,
        score: RouterScore::SoftmaxOfChosen,
        per_token,
        latent: None,
        clamped: None,
        experts,
        first: 0,
    })
}
