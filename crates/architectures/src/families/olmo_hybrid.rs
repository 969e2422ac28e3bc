//! OLMo Hybrid: gated delta nets with negative eigenvalues and norms before their parts, and in every fourth layer
//! attention with norms after its parts.

use super::{ModelFamily, attends, only_silu};
use crate::builder::{ArchitectureBuilder, OuterTensors};
use crate::layers::{
    Attention, AttentionShape, GatedDelta, GatedDeltaNames, GatedDeltaShape, GatedMlp,
};
use crate::params::Params;
use crate::rope::RotaryFraction;
use crate::{Architecture, Config, ConfigError, Layer, Mixer, NormPosition, Rope};

pub(super) const FAMILY: ModelFamily = ModelFamily {
    name: "olmo-hybrid",
    config_names: &["olmo_hybrid", "OlmoHybridForCausalLM"],
    multimodal_types: &[],
    without_kernels: None,
    matches_keys: |_| false,
    read,
};

/// The published names.
const NAMES: GatedDeltaNames = GatedDeltaNames {
    projections: &[
        ("q_proj", 1),
        ("k_proj", 1),
        ("v_proj", 1),
        ("g_proj", 1),
        ("b_proj", 1),
        ("a_proj", 1),
    ],
    by_key_head: false,
    convolutions: &["q_conv1d", "k_conv1d", "v_conv1d"],
    norm: "o_norm",
    out: "o_proj",
};

fn read(config: &Config, mut builder: ArchitectureBuilder) -> Result<Architecture, ConfigError> {
    builder.need(only_silu(config), ());
    builder.model(config, OuterTensors::with_prefix("model", "norm"), |builder| {
        let count = config.layer_count()?;
        let attends = match attends(config, "linear_attention")? {
            Some(attends) => attends,
            // Every fourth layer, and the last one if there is no fourth.
            None => (1..=count).map(|at| at % 4 == 0 || (at == count && count < 4)).collect(),
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
    let hidden = config.count("hidden_size")?;
    let (norm_position, names) = match attends {
        // As transformers 5.24 saves its class, the first name is that of other layers.
        true => (
            NormPosition::Post,
            [
                ["post_attention_layernorm", "feedforward_layer_norm"],
                ["post_feedforward_layernorm"; 2],
            ],
        ),
        false => (
            NormPosition::Pre,
            [
                ["attention_layer_norm", "input_layernorm"],
                ["feedforward_layer_norm", "post_attention_layernorm"],
            ],
        ),
    };
    let norm = |params: &mut Params, names: [&str; 2]| {
        let names = names.map(|name| format!("{prefix}.{name}.weight"));
        let [published, other] = names;
        let is_other = params.has(&other) && !params.has(&published);
        let name = if is_other { other } else { published };
        params.norm(name, hidden)
    };
    let input_norm = norm(&mut builder.params, names[0]);
    let mixer = match attends {
        true => Mixer::Attention(attention(config, builder, &format!("{prefix}.self_attn"))?),
        false => Mixer::GatedDelta(delta(config, builder, &format!("{prefix}.linear_attn"))?),
    };
    let post_norm = norm(&mut builder.params, names[1]);
    let widths = [hidden, config.count("intermediate_size")?];
    let mlp = Some(GatedMlp::llama(&mut builder.params, &format!("{prefix}.mlp"), widths));
    Ok(Layer { norm_position, input_norm, mixer, post_norm, experts: None, mlp })
}

/// Attention whose queries and keys are normalized over all heads; without rotary embedding if `rope_theta` is null.
fn attention(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    prefix: &str,
) -> Result<Attention, ConfigError> {
    let shape = AttentionShape::of(config)?;
    let is_null = |of: &Config| of.keys().any(|key| key == "rope_theta") && !of.has("rope_theta");
    let rotation = config.part("rope_parameters")?;
    let rope = match is_null(rotation.as_ref().unwrap_or(config)) {
        true => None,
        false => {
            builder.need(Rope::of(config, shape.head_dim, RotaryFraction::All).map(Some), None)
        }
    };
    let shape = AttentionShape { rope, qk_norm: true, norms_span_heads: true, ..shape };
    Ok(Attention::declare(&mut builder.params, prefix, shape))
}

fn delta(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    prefix: &str,
) -> Result<GatedDelta, ConfigError> {
    // Sizes that transformers derives where they are missing.
    let heads = config.count("num_attention_heads")?;
    let key_heads = config.size_or("linear_num_key_heads", heads)?;
    let key_dim = config
        .size_or("linear_key_head_dim", 3 * config.count("hidden_size")? / (4 * key_heads))?;
    let sizes = [
        ("linear_num_key_heads", key_heads),
        ("linear_num_value_heads", config.size_or("linear_num_value_heads", heads)?),
        ("linear_key_head_dim", key_dim),
        ("linear_value_head_dim", config.size_or("linear_value_head_dim", 2 * key_dim)?),
        ("linear_conv_kernel_dim", config.size_or("linear_conv_kernel_dim", 4)?),
    ];
    let derived =
        sizes.into_iter().fold(config.clone(), |config, (key, size)| config.with(key, size.into()));
    let shape = GatedDeltaShape::of(&derived, builder)?;
    Ok(GatedDelta {
        // flash-linear-attention's default, whatever the model's is.
        norm_eps: Some(1e-5),
        negative_eigenvalues: builder.need(config.flag_or("linear_allow_neg_eigval", true), true),
        ..GatedDelta::declare(&mut builder.params, prefix, shape, NAMES)
    })
}
