//! LFM2: gated short convolutions, and attention in listed layers; dense, or with experts after the first layers.

use super::{ENCODERS, ModelFamily, attends};
use crate::builder::{ArchitectureBuilder, OuterTensors};
use crate::layers::{
    Attention, AttentionShape, ExpertLayout, Experts, ExpertsShape, GatedMlp, RouterScore,
    ShortConv,
};
use crate::params::ParamInit;
use crate::rope::RotaryFraction;
use crate::{Architecture, Config, ConfigError, Layer, Mixer, NormPosition, Rope};

pub(super) const FAMILY: ModelFamily = ModelFamily {
    name: "lfm2",
    config_names: &["lfm2", "lfm2_moe", "Lfm2ForCausalLM", "Lfm2MoeForCausalLM"],
    multimodal_types: &["lfm2_vl"],
    without_kernels: None,
    matches_keys: |_| false,
    read,
};

fn read(config: &Config, mut builder: ArchitectureBuilder) -> Result<Architecture, ConfigError> {
    builder.unused = &ENCODERS;
    let tied = config.flag_or("tie_embedding", true)?;
    let outer = OuterTensors { tied, ..OuterTensors::with_prefix("model", "embedding_norm") };
    builder.model(config, outer, |builder| {
        let count = config.layer_count()?;
        let attends = match (attends(config, "conv")?, config.counts("full_attn_idxs")?) {
            (Some(attends), _) => attends,
            (None, Some(listed)) => (0..count).map(|index| listed.contains(&index)).collect(),
            (None, None) => {
                return Err(config.missing("layer_types", "the kind of each layer"));
            }
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
    let input_norm = builder.params.norm(format!("{prefix}.operator_norm.weight"), hidden);
    let mixer = if attends {
        let shape = AttentionShape::of(config)?;
        let rope =
            builder.need(Rope::of(config, shape.head_dim, RotaryFraction::All).map(Some), None);
        let names = ["out", "q_layernorm", "k_layernorm"];
        let shape = AttentionShape { rope, qk_norm: true, names, ..shape };
        let prefix = format!("{prefix}.self_attn");
        Mixer::Attention(Attention::declare(&mut builder.params, &prefix, shape))
    } else {
        Mixer::ShortConv(ShortConv::declare(config, builder, &format!("{prefix}.conv"))?)
    };
    let post_norm = builder.params.norm(format!("{prefix}.ffn_norm.weight"), hidden);
    let prefix = format!("{prefix}.feed_forward");
    let (experts, mlp) = match config.expert_count(&["num_experts"], 0)? {
        count if count > 0 && index >= config.count_or("num_dense_layers", 2)? => {
            (Some(experts(config, builder, &prefix, count)?), None)
        }
        0 if config.kind() == Some("lfm2_moe") => {
            return Err(config.wrong("num_experts", "a whole number above 0"));
        }
        count => {
            let inner = if count > 0 { config.count("intermediate_size")? } else { width(config)? };
            (None, Some(mlp(builder, &prefix, [hidden, inner])))
        }
    };
    Ok(Layer { norm_position: NormPosition::Pre, input_norm, mixer, post_norm, experts, mlp })
}

/// Intermediate size of a dense model's MLPs: two thirds of the config's value times a multiplier, rounded up to a multiple.
fn width(config: &Config) -> Result<usize, ConfigError> {
    let configured = config.count(config.present_key(&["block_ff_dim", "intermediate_size"]))?;
    if !config.flag_or("block_auto_adjust_ff_dim", true)? {
        return Ok(configured);
    }
    const FACTOR: &str = "block_ffn_dim_multiplier";
    let factor = config.number_or(FACTOR, 1.0)?;
    let width = (factor * (2 * configured / 3) as f64) as usize;
    let multiple = config.count_or("block_multiple_of", 256)?.max(1);
    match width {
        1..=0x100_0000 => Ok(width.next_multiple_of(multiple)),
        _ => Err(config.wrong(FACTOR, "a factor of two thirds of the width")),
    }
}

fn mlp(builder: &mut ArchitectureBuilder, prefix: &str, widths: [usize; 2]) -> GatedMlp {
    GatedMlp::declare(&mut builder.params, prefix, ["w1", "w3", "w2"], widths)
}

fn experts(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    prefix: &str,
    count: usize,
) -> Result<Experts, ConfigError> {
    let [hidden, inner] = [config.count("hidden_size")?, config.count("moe_intermediate_size")?];
    let per_token = builder.per_token(config, &["num_experts_per_tok"], count);
    if !builder.need(config.flag_or("use_expert_bias", true), true) {
        builder.refuse(config.wrong("use_expert_bias", "true, the published models have it so"));
    }
    let router = builder.params.projection(format!("{prefix}.gate.weight"), count, hidden);
    let correction = format!("{prefix}.expert_bias");
    let score = RouterScore::Sigmoid {
        correction: builder.params.add(correction, &[count], ParamInit::Uniform(-0.5, 0.5)),
        renormalise: builder.need(config.flag_or("norm_topk_prob", true), true),
        sum_eps: 1e-6,
        scale: builder.need(config.number_or("routed_scaling_factor", 1.0), f64::NAN),
        groups: None,
    };
    let shape = ExpertsShape { prefix, count, hidden, inner, gated: true };
    let experts = shape.declare(&mut builder.params, ExpertLayout::Each(["w1", "w3", "w2"]));
    Ok(Experts { router, score, per_token, latent: None, clamped: None, experts, first: 0 })
}
