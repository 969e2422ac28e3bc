//! Kimi Linear: Kimi Delta Attention with latent attention at listed places, experts after the first layers.

use super::{Family, layer_count, only_silu, only_without};
use crate::architecture::{Architecture, Layer, Mixer};
use crate::layers::{Experts, GatedMlp, Kda, LatentAttention, LatentShape, Score};
use crate::params::{Draw, Params, Projection};
use crate::{Config, ModelError};

pub(super) const FAMILY: Family =
    Family { name: "kimi-linear", known_by: &["kimi_linear", "KimiLinearForCausalLM"], read };

// Keys by the names of Moonshot's configs, then by those that transformers writes.
const EXPERTS: &[&str] = &["num_experts", "num_local_experts", "n_routed_experts"];
const PER_TOKEN: &[&str] = &["num_experts_per_token", "num_experts_per_tok"];
const SHARED: &[&str] = &["num_shared_experts", "n_shared_experts"];
const GROUPS: &[&str] = &["num_expert_group", "n_group"];
const RENORMALISE: &[&str] = &["moe_renormalize", "norm_topk_prob"];
const CONTEXT: &[&str] = &["model_max_length", "max_position_embeddings"];

fn read(config: &Config) -> Result<Architecture, ModelError> {
    only_silu(config)?;
    only_without(config, "mla_use_output_gate")?;
    let hidden = config.count("hidden_size")?;
    let vocabulary = config.count("vocab_size")?;
    let mut params = Params::default();
    let embed = params.projection("model.embed_tokens.weight".to_owned(), vocabulary, hidden);
    let kinds = layer_types(config)?;
    let kda = kda_shape(config)?;
    let layers = kinds.into_iter().enumerate();
    let layers = layers
        .map(|(index, kind)| layer(config, &mut params, index, kind, kda))
        .collect::<Result<Vec<_>, _>>()?;
    let norm = params.norm("model.norm.weight".to_owned(), hidden);
    let embedding = embed.rows[0].param;
    let head = match config.flag_or("tie_word_embeddings", false)? {
        true => embed,
        false => params.head(vocabulary, hidden),
    };
    Ok(Architecture {
        family: FAMILY.name,
        hidden,
        vocabulary,
        context: config.count(config.spelled(CONTEXT))?,
        eps: config.number("rms_norm_eps")?,
        embedding,
        embedding_multiplier: 1.0,
        residual_multiplier: 1.0,
        layers,
        norm,
        head,
        logits_divisor: 1.0,
        params,
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Kda,
    Latent,
}

/// A list of words as transformers writes it, or the two lists of layers in Moonshot's configs, which count from 1.
fn layer_types(config: &Config) -> Result<Vec<Kind>, ModelError> {
    let count = layer_count(config)?;
    if let Some((key, words)) = config.words(&["layer_types"])? {
        if words.len() != count {
            let wanted =
                format!("as many entries as there are layers: {count}, not {}", words.len());
            return Err(config.wrong(key, wanted));
        }
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

/// Heads, channels of a head and taps of the KDA layers.
fn kda_shape(config: &Config) -> Result<[usize; 3], ModelError> {
    let (part, keys) = match config.part("linear_attn_config")? {
        Some(part) => (part, ["num_heads", "head_dim", "short_conv_kernel_size"]),
        None => {
            let heads = config.spelled(&["linear_num_heads", "linear_num_key_heads"]);
            let dim = config.spelled(&["linear_head_dim", "linear_key_head_dim"]);
            (config.clone(), [heads, dim, "linear_conv_kernel_dim"])
        }
    };
    let [heads, dim, taps] = keys.map(|key| part.count(key));
    let taps = taps?;
    if !(2..=4).contains(&taps) {
        return Err(part.wrong(keys[2], "2 to 4 taps"));
    }
    Ok([heads?, dim?, taps])
}

fn layer(
    config: &Config,
    params: &mut Params,
    index: usize,
    kind: Kind,
    kda: [usize; 3],
) -> Result<Layer, ModelError> {
    let prefix = format!("model.layers.{index}");
    let hidden = config.count("hidden_size")?;
    let input_norm = params.norm(format!("{prefix}.input_layernorm.weight"), hidden);
    let attention = format!("{prefix}.self_attn");
    let mixer = match kind {
        Kind::Kda => Mixer::Kda(Kda::declare(params, &attention, hidden, kda)),
        Kind::Latent => {
            Mixer::Latent(LatentAttention::declare(params, &attention, latent_shape(config)?))
        }
    };
    let post_norm = params.norm(format!("{prefix}.post_attention_layernorm.weight"), hidden);
    let (experts, mlp) = match config.count_or(config.spelled(EXPERTS), 0)? {
        count if count > 0 && index >= config.count_or("first_k_dense_replace", 0)? => {
            let prefix = format!("{prefix}.block_sparse_moe");
            let (experts, shared) = experts(config, params, &prefix, count)?;
            (Some(experts), shared)
        }
        _ => {
            let inner = config.count("intermediate_size")?;
            let names = ["gate_proj", "up_proj", "down_proj"];
            (None, Some(gated(params, &format!("{prefix}.mlp"), names, hidden, inner)))
        }
    };
    Ok(Layer { input_norm, mixer, post_norm, experts, mlp })
}

fn latent_shape(config: &Config) -> Result<LatentShape, ModelError> {
    if config.get("q_lora_rank").is_some() {
        return Err(config.wrong("q_lora_rank", "null, the published models have it so"));
    }
    // Without this the shared key part would be rotated by position.
    if config.get("mla_use_nope").is_some() && !config.flag_or("mla_use_nope", true)? {
        return Err(config.wrong("mla_use_nope", "true, the published models have it so"));
    }
    Ok(LatentShape {
        hidden: config.count("hidden_size")?,
        heads: config.count("num_attention_heads")?,
        rank: config.count("kv_lora_rank")?,
        nope: config.count("qk_nope_head_dim")?,
        shared: config.count("qk_rope_head_dim")?,
        value: config.count("v_head_dim")?,
    })
}

/// Gate, up and down under three names.
fn gated(
    params: &mut Params,
    prefix: &str,
    [gate, up, down]: [&str; 3],
    hidden: usize,
    inner: usize,
) -> GatedMlp {
    let mut project = |name: &str, outputs, inputs| {
        params.projection(format!("{prefix}.{name}.weight"), outputs, inputs)
    };
    GatedMlp {
        gate_up: Projection::stacked([project(gate, inner, hidden), project(up, inner, hidden)]),
        down: project(down, hidden, inner),
    }
}

/// The routed experts and what every token passes beside them.
fn experts(
    config: &Config,
    params: &mut Params,
    prefix: &str,
    count: usize,
) -> Result<(Experts, Option<GatedMlp>), ModelError> {
    let hidden = config.count("hidden_size")?;
    let inner = config.count("moe_intermediate_size")?;
    let per_token = config.count(config.spelled(PER_TOKEN))?;
    if per_token > count {
        return Err(config.wrong(config.spelled(PER_TOKEN), format!("at most the {count} experts")));
    }
    if config.count_or(config.spelled(GROUPS), 1)? > 1 {
        return Err(config.wrong(config.spelled(GROUPS), "1, the published models have it so"));
    }
    match config.text("moe_router_activation_func")? {
        None | Some("sigmoid") => {}
        Some(_) => return Err(config.wrong("moe_router_activation_func", "sigmoid")),
    }
    let router = params.projection(format!("{prefix}.gate.weight"), count, hidden);
    let correction = format!("{prefix}.gate.e_score_correction_bias");
    let score = Score::Sigmoid {
        // As large as the differences of scores, so that it changes the choice.
        correction: params.add(correction, &[count], Draw::Uniform(-0.5, 0.5)),
        renormalise: config.flag_or(config.spelled(RENORMALISE), true)?,
        scale: config.number("routed_scaling_factor")?,
    };
    let expert = |e: usize, params: &mut Params| {
        gated(params, &format!("{prefix}.experts.{e}"), ["w1", "w3", "w2"], hidden, inner)
    };
    let experts = (0..count).map(|e| expert(e, params)).collect();
    let shared = match config.count_or(config.spelled(SHARED), 0)? {
        0 => None,
        shared => {
            let names = ["gate_proj", "up_proj", "down_proj"];
            let prefix = format!("{prefix}.shared_experts");
            Some(gated(params, &prefix, names, hidden, shared * inner))
        }
    };
    Ok((Experts { router, score, per_token, experts }, shared))
}
