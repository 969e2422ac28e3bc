//! Kimi Linear: Kimi Delta Attention with latent attention in listed layers, and experts after the first layers.

use super::{ModelFamily, expert_groups, only_silu, only_without};
use crate::builder::{ArchitectureBuilder, OuterTensors};
use crate::layers::{
    ExpertLayout, Experts, ExpertsShape, GatedMlp, Kda, LatentAttention, LatentShape, RouterScore,
};
use crate::params::ParamInit;
use crate::{Architecture, Config, ConfigError, Layer, Mixer, NormPosition};

pub(super) const FAMILY: ModelFamily = ModelFamily {
    name: "kimi-linear",
    config_names: &["kimi_linear", "KimiLinearForCausalLM"],
    multimodal_types: &[],
    without_kernels: Some(
        "The model's own code imports fla when it is loaded and stops without it; transformers' own code takes a slow \
         path instead.",
    ),
    matches_keys: |_| false,
    read,
};

// Names of keys in Moonshot's configs, then in transformers'.
const EXPERTS: &[&str] = &["num_experts", "num_local_experts", "n_routed_experts"];
const PER_TOKEN: &[&str] = &["num_experts_per_token", "num_experts_per_tok"];
const SHARED: &[&str] = &["num_shared_experts", "n_shared_experts"];
const GROUPS: &[&str] = &["num_expert_group", "n_group"];
const RENORMALISE: &[&str] = &["moe_renormalize", "norm_topk_prob"];

fn read(config: &Config, mut builder: ArchitectureBuilder) -> Result<Architecture, ConfigError> {
    builder.need(only_silu(config), ());
    builder.need(only_without(config, "mla_use_output_gate"), ());
    builder.need(only_without(config, "attention_bias"), ());
    builder.model(config, OuterTensors::llama(), |builder| {
        let layers = layer_types(config)?.into_iter().enumerate();
        let kda = kda_shape(config, builder)?;
        let routed = routed(config)?;
        layers
            .map(|(index, kind)| layer(config, builder, index, (kind, routed[index]), kda))
            .collect()
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Kda,
    Latent,
}

/// transformers' list of kinds, or Moonshot's two lists of layers, which count from 1.
fn layer_types(config: &Config) -> Result<Vec<Kind>, ConfigError> {
    if let Some((key, words)) = config.layer_words(&["layer_types"])? {
        let kind = |word: &String| match word.as_str() {
            "linear_attention" | "kda_attention" => Ok(Kind::Kda),
            "full_attention" => Ok(Kind::Latent),
            other => {
                let wanted =
                    format!("no layer of kind `{other}`, but linear_attention or full_attention");
                Err(config.wrong(key, wanted))
            }
        };
        return words.iter().map(kind).collect();
    }
    const KEY: &str = "linear_attn_config";
    let wanted = "the layers of each kind";
    let lists = config.part(KEY)?.ok_or_else(|| config.missing(KEY, wanted))?;
    let count = config.layer_count()?;
    let mut kinds = vec![None; count];
    for (key, kind) in [("full_attn_layers", Kind::Latent), ("kda_layers", Kind::Kda)] {
        let layers = lists.counts(key)?.ok_or_else(|| lists.missing(key, wanted))?;
        for layer in layers {
            let place = layer.checked_sub(1).and_then(|index| kinds.get_mut(index));
            let Some(place) = place else {
                return Err(lists.wrong(key, format!("layers from 1 to {count}")));
            };
            if place.replace(kind).is_some() {
                return Err(lists.wrong(key, format!("layer {layer} in one list only")));
            }
        }
    }
    let unnamed =
        |index| lists.wrong("kda_layers", format!("layer {} in one of the lists", index + 1));
    kinds.iter().enumerate().map(|(index, kind)| kind.ok_or_else(|| unnamed(index))).collect()
}

/// Which layers have experts: those of transformers' list, or all after the first ones of Moonshot's configs.
fn routed(config: &Config) -> Result<Vec<bool>, ConfigError> {
    let Some((key, words)) = config.layer_words(&["mlp_layer_types"])? else {
        let first = config.count_or("first_k_dense_replace", 0)?;
        return Ok((0..config.layer_count()?).map(|index| index >= first).collect());
    };
    let routed = |word: &String| match word.as_str() {
        "sparse" => Ok(true),
        "dense" => Ok(false),
        _ => Err(config.wrong(key, "dense or sparse for each layer")),
    };
    words.iter().map(routed).collect()
}

/// Heads, channels of a head and taps of the KDA layers.
fn kda_shape(
    config: &Config,
    builder: &mut ArchitectureBuilder,
) -> Result<[usize; 3], ConfigError> {
    let (part, keys) = match config.part("linear_attn_config")? {
        Some(part) => (part, ["num_heads", "head_dim", "short_conv_kernel_size"]),
        None => {
            let heads = config.present_key(&["linear_num_heads", "linear_num_key_heads"]);
            let dim = config.present_key(&["linear_head_dim", "linear_key_head_dim"]);
            (config.clone(), [heads, dim, "linear_conv_kernel_dim"])
        }
    };
    let [heads, dim, taps] = keys.map(|key| part.count(key));
    let taps = taps?;
    if !(2..=4).contains(&taps) {
        builder.refuse(part.wrong(keys[2], "2 to 4 taps"));
    }
    Ok([heads?, dim?, taps])
}

fn layer(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    index: usize,
    (kind, routed): (Kind, bool),
    kda: [usize; 3],
) -> Result<Layer, ConfigError> {
    let prefix = format!("model.layers.{index}");
    let hidden = config.count("hidden_size")?;
    let input_norm = builder.params.norm(format!("{prefix}.input_layernorm.weight"), hidden);
    let attention = format!("{prefix}.self_attn");
    let mixer = match kind {
        Kind::Kda => Mixer::Kda(Kda::declare(&mut builder.params, &attention, hidden, kda)),
        Kind::Latent => {
            let shape = latent_shape(config, builder)?;
            let q_rank = config.count_unless_auto("q_lora_rank")?;
            let shape = (shape, q_rank);
            Mixer::Latent(LatentAttention::declare(&mut builder.params, &attention, shape, None))
        }
    };
    let post_norm =
        builder.params.norm(format!("{prefix}.post_attention_layernorm.weight"), hidden);
    let (experts, mlp) = match config.expert_count(EXPERTS, 0)? {
        count if count > 0 && routed => {
            let prefix = format!("{prefix}.block_sparse_moe");
            let (experts, shared) = experts(config, builder, &prefix, count)?;
            (Some(experts), shared)
        }
        _ => {
            let widths = [hidden, config.count("intermediate_size")?];
            let prefix = format!("{prefix}.mlp");
            (None, Some(GatedMlp::llama(&mut builder.params, &prefix, widths)))
        }
    };
    Ok(Layer { norm_position: NormPosition::Pre, input_norm, mixer, post_norm, experts, mlp })
}

fn latent_shape(
    config: &Config,
    builder: &mut ArchitectureBuilder,
) -> Result<LatentShape, ConfigError> {
    if config.has("q_lora_rank") {
        builder.refuse(config.wrong("q_lora_rank", "null, the published models have it so"));
    }
    // Otherwise the shared part of keys has rotary embedding.
    if !builder.need(config.flag_or("mla_use_nope", true), true) {
        builder.refuse(config.wrong("mla_use_nope", "true, the published models have it so"));
    }
    LatentShape::of(config)
}

/// The routed and the shared experts.
fn experts(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    prefix: &str,
    count: usize,
) -> Result<(Experts, Option<GatedMlp>), ConfigError> {
    let hidden = config.count("hidden_size")?;
    let inner = config.count("moe_intermediate_size")?;
    let per_token = builder.per_token(config, PER_TOKEN, count);
    let groups = expert_groups(config, builder, GROUPS, [count, per_token]);
    match config.text("moe_router_activation_func") {
        Ok(None | Some("sigmoid")) => {}
        _ => builder.refuse(config.wrong("moe_router_activation_func", "sigmoid")),
    }
    let router = builder.params.projection(format!("{prefix}.gate.weight"), count, hidden);
    let correction = format!("{prefix}.gate.e_score_correction_bias");
    let score = RouterScore::Sigmoid {
        // In the magnitude of score differences, so that it changes the choice.
        correction: builder.params.add(correction, &[count], ParamInit::Uniform(-0.5, 0.5)),
        renormalise: builder.need(config.flag_or(config.present_key(RENORMALISE), true), true),
        sum_eps: 1e-20,
        scale: builder.number(config, "routed_scaling_factor"),
        groups,
    };
    let shape = ExpertsShape { prefix, count, hidden, inner, gated: true };
    let experts = shape.declare(&mut builder.params, ExpertLayout::Each(["w1", "w3", "w2"]));
    let shared = match config.count_or(config.present_key(SHARED), 0)? {
        0 => None,
        shared => {
            let widths = [hidden, shared * inner];
            let prefix = format!("{prefix}.shared_experts");
            Some(GatedMlp::llama(&mut builder.params, &prefix, widths))
        }
    };
    Ok((
        Experts { router, score, per_token, latent: None, clamped: None, experts, first: 0 },
        shared,
    ))
}
