//! Qwen3-Next and 3.5: Gated DeltaNet with full attention in every fourth layer, experts in all layers or in none.

use super::{ModelFamily, attends, only_silu, only_without, softmax};
use crate::builder::{ArchitectureBuilder, OuterTensors};
use crate::layers::{
    Attention, AttentionShape, ExpertLayout, Experts, ExpertsShape, Gate, GatedDelta,
    GatedDeltaNames, GatedDeltaShape, GatedMlp,
};
use crate::rope::RotaryFraction;
use crate::{Architecture, Config, ConfigError, Layer, Mixer, NormPosition, Rope};

pub(super) const FAMILY: ModelFamily = ModelFamily {
    name: "qwen3-next",
    config_names: &["qwen3_next", "Qwen3NextForCausalLM", "qwen3_5_moe_text", "qwen3_5_text"],
    multimodal_types: &["qwen3_5", "qwen3_5_moe", "minicpmv4_6", "minicpmv4_7", "minicpm_ocr"],
    without_kernels: None,
    matches_keys: |_| false,
    read,
};

fn read(config: &Config, mut builder: ArchitectureBuilder) -> Result<Architecture, ConfigError> {
    builder.need(only_silu(config), ());
    builder.need(only_without(config, "attention_bias"), ());
    builder.params.norms_add_one = true;
    // Multi-token-prediction layers and the vision encoder are not loaded. For text the positions of a rotation's three
    // sections are equal, which makes it an ordinary one.
    builder.unused = &["mtp.", "visual.", "vision_tower.", "model.merger."];
    // 3.5 has a separate tensor for each projection, and may be nested in a multimodal model.
    let newer = config.names().iter().any(|name| name.starts_with("qwen3_5"));
    let root = if config.language_model().is_some() { "model.language_model" } else { "model" };
    builder.model(config, OuterTensors::with_prefix(root, "norm"), |builder| {
        let count = config.layer_count()?;
        let interval = config.count_or("full_attention_interval", 4)?.max(1);
        let attends = match attends(config, "linear_attention")? {
            Some(attends) => attends,
            None => (1..=count).map(|layer| layer % interval == 0).collect(),
        };
        let dense = config.counts("mlp_only_layers")?.unwrap_or_default();
        let step = config.count_or("decoder_sparse_step", 1)?.max(1);
        let layers = attends.into_iter().enumerate();
        let layer = |(index, attends)| {
            let prefix = format!("{root}.layers.{index}");
            // 3.5 has experts in every layer.
            let dense = !newer && (dense.contains(&index) || !(index + 1).is_multiple_of(step));
            layer(config, builder, &prefix, (attends, dense, newer))
        };
        layers.map(layer).collect()
    })
}

/// The names of Qwen3-Next.
const BY_KEY_HEAD: GatedDeltaNames = GatedDeltaNames {
    projections: &[("in_proj_qkvz", 4), ("in_proj_ba", 2)],
    by_key_head: true,
    convolutions: &["conv1d"],
    norm: "norm",
    out: "out_proj",
};

/// The names of Qwen3.5.
const SEPARATE: GatedDeltaNames = GatedDeltaNames {
    projections: &[("in_proj_qkv", 3), ("in_proj_z", 1), ("in_proj_b", 1), ("in_proj_a", 1)],
    by_key_head: false,
    ..BY_KEY_HEAD
};

fn layer(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    prefix: &str,
    (attends, dense, newer): (bool, bool, bool),
) -> Result<Layer, ConfigError> {
    let hidden = config.count("hidden_size")?;
    let input_norm = builder.params.norm(format!("{prefix}.input_layernorm.weight"), hidden);
    let mixer = if attends {
        let shape = AttentionShape::of(config)?;
        let rope = builder
            .need(Rope::of(config, shape.head_dim, RotaryFraction::Named(0.25)).map(Some), None);
        let shape = AttentionShape { rope, gate: Gate::Queries, qk_norm: true, ..shape };
        let prefix = format!("{prefix}.self_attn");
        Mixer::Attention(Attention::declare(&mut builder.params, &prefix, shape))
    } else {
        let (shape, prefix) =
            (GatedDeltaShape::of(config, builder)?, format!("{prefix}.linear_attn"));
        let names = if newer { SEPARATE } else { BY_KEY_HEAD };
        Mixer::GatedDelta(GatedDelta::declare(&mut builder.params, &prefix, shape, names))
    };
    let post_norm =
        builder.params.norm(format!("{prefix}.post_attention_layernorm.weight"), hidden);
    let prefix = format!("{prefix}.mlp");
    let (experts, mlp) = match config.expert_count(&["num_experts"], 0)? {
        count if count > 0 && !dense => {
            let (experts, shared) = experts(config, builder, &prefix, (count, newer))?;
            (Some(experts), shared)
        }
        _ => {
            let widths = [hidden, config.count("intermediate_size")?];
            (None, Some(GatedMlp::llama(&mut builder.params, &prefix, widths)))
        }
    };
    Ok(Layer { norm_position: NormPosition::Pre, input_norm, mixer, post_norm, experts, mlp })
}

/// The routed experts and the shared one, which has a token gate.
fn experts(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    prefix: &str,
    (count, newer): (usize, bool),
) -> Result<(Experts, Option<GatedMlp>), ConfigError> {
    let hidden = config.count("hidden_size")?;
    let inner = config.count("moe_intermediate_size")?;
    let per_token = builder.per_token(config, &["num_experts_per_tok"], count);
    let score = softmax(config, builder, true);
    let params = &mut builder.params;
    let router = params.projection(format!("{prefix}.gate.weight"), count, hidden);
    let published = match newer {
        true => ExpertLayout::Stacked(["experts.gate_up_proj", "experts.down_proj"]),
        false => ExpertLayout::Each(["gate_proj", "up_proj", "down_proj"]),
    };
    let shape = ExpertsShape { prefix, count, hidden, inner, gated: true };
    let experts = shape.declare(params, published);
    let shared = match config.count_or("shared_expert_intermediate_size", 0)? {
        0 => None,
        shared => Some(GatedMlp::with_token_gate(params, prefix, [hidden, shared])),
    };
    Ok((
        Experts { router, score, per_token, latent: None, clamped: None, experts, first: 0 },
        shared,
    ))
}
