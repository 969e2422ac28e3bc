//! LFM2: short convolutions between products, attention in listed layers; dense, or with experts after the first
//! layers.

use super::{ModelFamily, attends};
use crate::draft::{Around, Draft};
use crate::layers::{
    Attention, AttentionShape, ExpertLayout, Experts, ExpertsShape, GatedMlp, RouterScore,
    ShortConv,
};
use crate::params::ParamInit;
use crate::rope::RotaryFraction;
use crate::{Architecture, Config, ConfigError, Layer, Mixer, NormPosition, Rope};

pub(super) const FAMILY: ModelFamily = ModelFamily {
    name: "lfm2",
    known_by: &["lfm2", "lfm2_moe", "Lfm2ForCausalLM", "Lfm2MoeForCausalLM"],
    inside: &[],
    demands: None,
    recognises: |_| false,
    read,
};

fn read(config: &Config, draft: Draft) -> Result<Architecture, ConfigError> {
    let tied = config.flag_or("tie_embedding", true)?;
    let around = Around { tied, ..Around::under("model", "embedding_norm") };
    draft.model(config, around, |draft| {
        let count = config.layer_count()?;
        let attends = match (attends(config, "conv")?, config.counts("full_attn_idxs")?) {
            (Some(attends), _) => attends,
            (None, Some(listed)) => (0..count).map(|index| listed.contains(&index)).collect(),
            (None, None) => {
                return Err(config.missing("layer_types", "the kind of each layer"));
            }
        };
        let layers = attends.into_iter().enumerate();
        layers.map(|(index, attends)| layer(config, draft, index, attends)).collect()
    })
}

fn layer(
    config: &Config,
    draft: &mut Draft,
    index: usize,
    attends: bool,
) -> Result<Layer, ConfigError> {
    let prefix = format!("model.layers.{index}");
    let hidden = config.count("hidden_size")?;
    let input_norm = draft.params.norm(format!("{prefix}.operator_norm.weight"), hidden);
    let mixer = if attends {
        let shape = AttentionShape::of(config)?;
        let rope =
            draft.need(Rope::of(config, shape.head_dim, RotaryFraction::All).map(Some), None);
        let names = ["out", "q_layernorm", "k_layernorm"];
        let shape = AttentionShape { rope, normed: true, names, ..shape };
        let prefix = format!("{prefix}.self_attn");
        Mixer::Attention(Attention::declare(&mut draft.params, &prefix, shape))
    } else {
        Mixer::ShortConv(ShortConv::declare(config, draft, &format!("{prefix}.conv"))?)
    };
    let post_norm = draft.params.norm(format!("{prefix}.ffn_norm.weight"), hidden);
    let prefix = format!("{prefix}.feed_forward");
    let (experts, mlp) = match config.expert_count(&["num_experts"], 0)? {
        count if count > 0 && index >= config.count_or("num_dense_layers", 2)? => {
            (Some(experts(config, draft, &prefix, count)?), None)
        }
        0 if config.kind() == Some("lfm2_moe") => {
            return Err(config.wrong("num_experts", "a whole number above 0"));
        }
        count => {
            let inner = if count > 0 { config.count("intermediate_size")? } else { width(config)? };
            (None, Some(mlp(draft, &prefix, [hidden, inner])))
        }
    };
    Ok(Layer { norm_position: NormPosition::Pre, input_norm, mixer, post_norm, experts, mlp })
}

/// Width of a dense model's feed-forward parts: two thirds of the config's value, times a multiplier, rounded up.
fn width(config: &Config) -> Result<usize, ConfigError> {
    let said = config.count(config.spelled(&["block_ff_dim", "intermediate_size"]))?;
    if !config.flag_or("block_auto_adjust_ff_dim", true)? {
        return Ok(said);
    }
    const FACTOR: &str = "block_ffn_dim_multiplier";
    let factor = config.number_or(FACTOR, 1.0)?;
    let width = (factor * (2 * said / 3) as f64) as usize;
    let multiple = config.count_or("block_multiple_of", 256)?.max(1);
    match width {
        1..=0x100_0000 => Ok(width.next_multiple_of(multiple)),
        _ => Err(config.wrong(FACTOR, "a factor of two thirds of the width")),
    }
}

fn mlp(draft: &mut Draft, prefix: &str, widths: [usize; 2]) -> GatedMlp {
    GatedMlp::declare(&mut draft.params, prefix, ["w1", "w3", "w2"], widths)
}

fn experts(
    config: &Config,
    draft: &mut Draft,
    prefix: &str,
    count: usize,
) -> Result<Experts, ConfigError> {
    let [hidden, inner] = [config.count("hidden_size")?, config.count("moe_intermediate_size")?];
    let per_token = draft.per_token(config, &["num_experts_per_tok"], count);
    if !draft.need(config.flag_or("use_expert_bias", true), true) {
        draft.refuse(config.wrong("use_expert_bias", "true, the published models have it so"));
    }
    let router = draft.params.projection(format!("{prefix}.gate.weight"), count, hidden);
    let correction = format!("{prefix}.expert_bias");
    let score = RouterScore::Sigmoid {
        correction: draft.params.add(correction, &[count], ParamInit::Uniform(-0.5, 0.5)),
        renormalise: draft.need(config.flag_or("norm_topk_prob", true), true),
        sum_eps: 1e-6,
        scale: draft.need(config.number_or("routed_scaling_factor", 1.0), f64::NAN),
    };
    let shape = ExpertsShape { prefix, count, hidden, inner, gated: true };
    let experts = shape.declare(&mut draft.params, ExpertLayout::Each(["w1", "w3", "w2"]));
    Ok(Experts { router, score, per_token, latent: None, clamped: None, experts, first: 0 })
}
