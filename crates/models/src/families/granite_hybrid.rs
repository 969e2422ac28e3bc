//! Granite 4.0: Mamba-2 with a few attention layers or attention everywhere, experts beside a shared feed-forward part.
//!
//! transformers' GraniteMoeHybrid. With more than one group its torch path normalises all channels together, mamba_ssm's
//! fused kernel and vLLM those of a group; all published models have one group. Here a group is normalised by itself.

use super::{Family, layer_count, only_silu, only_without};
use crate::architecture::{Architecture, Layer, Mixer};
use crate::layers::{Attention, AttentionShape, Experts, GatedMlp, Mamba2, Mamba2Shape, Score};
use crate::params::{Params, Projection, Rows, fan_in};
use crate::{Config, ModelError};

pub(super) const FAMILY: Family = Family {
    name: "granite-hybrid",
    known_by: &["granitemoehybrid", "GraniteMoeHybridForCausalLM"],
    read,
};

fn read(config: &Config) -> Result<Architecture, ModelError> {
    only_silu(config)?;
    only_without(config, "attention_bias")?;
    let hidden = config.count("hidden_size")?;
    let vocabulary = config.count("vocab_size")?;
    let mut params = Params::default();
    let embed = params.projection("model.embed_tokens.weight".to_owned(), vocabulary, hidden);
    let layers = layer_types(config)?;
    let layers = layers.into_iter().enumerate();
    let layers = layers
        .map(|(index, kind)| layer(config, &mut params, index, kind))
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
        context: config.count("max_position_embeddings")?,
        eps: config.number("rms_norm_eps")?,
        embedding,
        embedding_multiplier: config.number("embedding_multiplier")?,
        residual_multiplier: config.number("residual_multiplier")?,
        layers,
        norm,
        head,
        logits_divisor: match config.number("logits_scaling")? {
            0.0 => return Err(config.wrong("logits_scaling", "a number other than 0")),
            divisor => divisor,
        },
        params,
    })
}

#[derive(Clone, Copy)]
enum Kind {
    Mamba,
    Attention,
}

/// The older spelling of a layer's kind, and the one transformers 5 writes.
fn layer_types(config: &Config) -> Result<Vec<Kind>, ModelError> {
    let count = layer_count(config)?;
    let Some((key, words)) = config.words(&["layer_types", "layers_block_type"])? else {
        return Err(config.missing("layer_types", "the kind of each layer"));
    };
    if words.len() != count {
        let wanted = format!("as many entries as there are layers: {count}, not {}", words.len());
        return Err(config.wrong(key, wanted));
    }
    let kind = |word: &String| match word.as_str() {
        "mamba" | "linear_attention" => Ok(Kind::Mamba),
        "attention" | "full_attention" => Ok(Kind::Attention),
        other => {
            Err(config.wrong(key, format!("no layer of kind `{other}`, but mamba or attention")))
        }
    };
    words.iter().map(kind).collect()
}

fn layer(
    config: &Config,
    params: &mut Params,
    index: usize,
    kind: Kind,
) -> Result<Layer, ModelError> {
    let prefix = format!("model.layers.{index}");
    let hidden = config.count("hidden_size")?;
    let input_norm = params.norm(format!("{prefix}.input_layernorm.weight"), hidden);
    let mixer = match kind {
        Kind::Mamba => {
            let biases = [
                config.flag_or("mamba_conv_bias", true)?,
                config.flag_or("mamba_proj_bias", false)?,
            ];
            let shape = mamba_shape(config)?;
            Mixer::Mamba2(Mamba2::declare(params, &format!("{prefix}.mamba"), shape, biases))
        }
        Kind::Attention => {
            let shape = attention_shape(config)?;
            Mixer::Attention(Attention::declare(params, &format!("{prefix}.self_attn"), shape))
        }
    };
    let post_norm = params.norm(format!("{prefix}.post_attention_layernorm.weight"), hidden);
    let experts = match config.count_or("num_local_experts", 0)? {
        0 => None,
        count => Some(experts(config, params, &format!("{prefix}.block_sparse_moe"), count)?),
    };
    let inner = config.count("shared_intermediate_size")?;
    let prefix = format!("{prefix}.shared_mlp");
    let mlp = GatedMlp {
        gate_up: params.projection(format!("{prefix}.input_linear.weight"), 2 * inner, hidden),
        down: params.projection(format!("{prefix}.output_linear.weight"), hidden, inner),
    };
    Ok(Layer { input_norm, mixer, post_norm, experts, mlp: Some(mlp) })
}

fn mamba_shape(config: &Config) -> Result<Mamba2Shape, ModelError> {
    let hidden = config.count("hidden_size")?;
    let heads = config.count("mamba_n_heads")?;
    let inner = config.count("mamba_expand")? * hidden;
    // "auto" stands for the inner width shared out among the heads.
    let head_dim = match config.get("mamba_d_head").and_then(|value| value.as_str()) {
        Some("auto") => inner / heads,
        _ => config.count("mamba_d_head")?,
    };
    if heads * head_dim != inner {
        let wanted = format!("{inner} / `mamba_d_head`, with mamba_expand * hidden_size = {inner}");
        return Err(config.wrong("mamba_n_heads", wanted));
    }
    let groups = config.count("mamba_n_groups")?;
    if heads % groups != 0 {
        return Err(config.wrong("mamba_n_groups", format!("a divisor of the {heads} heads")));
    }
    Ok(Mamba2Shape {
        hidden,
        heads,
        head_dim,
        groups,
        state: config.count("mamba_d_state")?,
        taps: match config.count("mamba_d_conv")? {
            taps @ 2..=4 => taps,
            _ => return Err(config.wrong("mamba_d_conv", "2 to 4 taps")),
        },
        dt_limits: config.limits("time_step_limit", [0.0, f64::INFINITY])?,
    })
}

fn attention_shape(config: &Config) -> Result<AttentionShape, ModelError> {
    let hidden = config.count("hidden_size")?;
    let heads = config.count("num_attention_heads")?;
    let kv_heads = config.count_or("num_key_value_heads", heads)?;
    if kv_heads == 0 || heads % kv_heads != 0 {
        return Err(config.wrong("num_key_value_heads", format!("a divisor of the {heads} heads")));
    }
    let head_dim = match config.count_or("head_dim", hidden / heads)? {
        0 => return Err(config.wrong("num_attention_heads", "at most hidden_size")),
        dim => dim,
    };
    Ok(AttentionShape {
        hidden,
        heads,
        kv_heads,
        head_dim,
        scale: config.number("attention_multiplier")?,
        rope_theta: match config.text("position_embedding_type")? {
            Some("rope") if head_dim % 2 == 0 => Some(rope_theta(config)?),
            Some("rope") => return Err(config.wrong("head_dim", "an even number, to be rotated")),
            None | Some("nope") => None,
            Some(_) => return Err(config.wrong("position_embedding_type", "rope or nope")),
        },
    })
}

/// The base of the rotation, as it stood before and since transformers 5. A scaled rotation is refused, not guessed.
fn rope_theta(config: &Config) -> Result<f64, ModelError> {
    for key in ["rope_scaling", "rope_parameters"] {
        let Some(part) = config.part(key)? else { continue };
        for kind in ["rope_type", "type"] {
            if !matches!(part.text(kind)?, None | Some("default")) {
                return Err(part.wrong(kind, "default, the published models have it so"));
            }
        }
        if part.get("rope_theta").is_some() {
            return part.number("rope_theta");
        }
    }
    config.number_or("rope_theta", 10_000.0)
}

fn experts(
    config: &Config,
    params: &mut Params,
    prefix: &str,
    count: usize,
) -> Result<Experts, ModelError> {
    let hidden = config.count("hidden_size")?;
    let inner = config.count("intermediate_size")?;
    let per_token = config.count("num_experts_per_tok")?;
    if per_token > count {
        return Err(config.wrong("num_experts_per_tok", format!("at most the {count} experts")));
    }
    let fused = |name: &str, outputs: usize, inputs: usize, params: &mut Params| {
        let name = format!("{prefix}.{name}.weight");
        let param = params.add(name, &[count, outputs, inputs], fan_in(inputs));
        move |expert: usize| {
            Projection::of(Rows { param, first: expert * outputs, count: outputs }, inputs)
        }
    };
    let gate_up = fused("input_linear", 2 * inner, hidden, params);
    let down = fused("output_linear", hidden, inner, params);
    let experts = (0..count).map(|e| GatedMlp { gate_up: gate_up(e), down: down(e) }).collect();
    Ok(Experts {
        router: params.projection(format!("{prefix}.router.layer.weight"), count, hidden),
        score: Score::SoftmaxOfChosen,
        per_token,
        experts,
    })
}
