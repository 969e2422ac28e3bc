//! Attention in every layer: Llama, Mistral, Qwen, Granite, OLMo, GLM and others whose layers differ only in names and
//! settings, which are rows of [`kinds::KINDS`].
//!
//! A config that is recognized by its keys alone is described with Llama's names.

mod kinds;

use super::{ModelFamily, expert_groups, only_one_group, only_silu, only_without, softmax};
use crate::architecture::unknown;
use crate::builder::{ArchitectureBuilder, OuterTensors};
use crate::layers::{
    Attention, AttentionShape, Experts, ExpertsShape, Gate, GatedMlp, LatentAttention, LatentShape,
    RouterScore,
};
use crate::params::ParamInit;
use crate::rope::RotaryFraction;
use crate::{Architecture, Config, ConfigError, Layer, Mixer, NormPosition, Rope};
use kinds::{
    KINDS, Kind, LLAMA, Mlp, Multipliers, NAMES, Norms, QkNorm, Rotated, Routed, Score, Shared,
    UNUSED, UNUSED_WITH_MTP, Windows, is_rotated,
};

pub(super) const FAMILY: ModelFamily = ModelFamily {
    name: "plain-attention",
    config_names: &NAMES,
    multimodal_types: &[
        "mistral3",
        "llava",
        "llava_next",
        "llava_next_video",
        "llava_onevision",
        "video_llava",
        "vipllava",
        "internvl",
        "idefics2",
        "idefics3",
        "smolvlm",
        "qwen3_vl",
        "qwen3_vl_moe",
        "got_ocr2",
        "ovis2",
        "lighton_ocr",
        "video_llama_3",
        "deepseek_vl",
        "gemma3",
        "granite_docling",
        "voxtral",
        "qwen2_audio",
        "qwen3_asr",
        "kimi_k25",
    ],
    without_kernels: None,
    // A config that mentions a recurrent layer and belongs to no other family is not plain attention.
    matches_keys: |config| {
        let recurrent = [
            "mamba_d_state",
            "ssm_state_size",
            "linear_attn_config",
            "linear_key_head_dim",
            "state_size",
            "hybrid_override_pattern",
            "ssm_cfg",
            "rwkv_version",
            "lru_width",
        ];
        let of_attention = |word: &String| word.contains("attention") && !word.contains("linear");
        config.has("num_attention_heads")
            && config.has("hidden_size")
            && !recurrent.iter().any(|key| config.has(key))
            && match config.words(&["layer_types"]) {
                Ok(Some((_, words))) => words.iter().all(of_attention),
                _ => true,
            }
    },
    read,
};

const EXPERTS: &[&str] = &["num_local_experts", "num_experts", "n_routed_experts"];

fn read(config: &Config, mut builder: ArchitectureBuilder) -> Result<Architecture, ConfigError> {
    let kind_name = config.kind().unwrap_or("llama");
    let row = KINDS.iter().find(|(name, _)| *name == kind_name);
    let kind = row.map_or(LLAMA, |(_, kind)| *kind);
    if row.is_none() {
        builder.refuse(unknown(config, true));
    }
    let act = config.present_key(&["hidden_activation", "hidden_act"]);
    match (kind.mlp, config.text(act)) {
        (Mlp::Squared, Ok(None | Some("relu2"))) => {}
        (Mlp::Squared, _) => builder.refuse(config.wrong(act, "relu2")),
        (Mlp::Gelu, Ok(None | Some("gelu_pytorch_tanh"))) => {}
        (Mlp::Gelu, _) => builder.refuse(config.wrong(act, "gelu_pytorch_tanh")),
        _ => builder.need(only_silu(config), ()),
    }
    builder.params.norms_add_one = kind.norms_add_one;
    builder.need(only_without(config, "use_bidirectional_attention"), ());
    for flag in ["mlp_bias", "use_bias"] {
        builder.need(only_without(config, flag), ());
    }
    if kind.gated {
        builder.need(only_without(config, "attention_bias"), ());
    }
    if config.has("clip_qkv") {
        builder.refuse(config.wrong("clip_qkv", "null, the published models have it so"));
    }
    let [embedding_multiplier, residual_multiplier, logits_divisor] = match kind.multipliers {
        Multipliers::None => [1.0; 3],
        Multipliers::Granite => ["embedding_multiplier", "residual_multiplier", "logits_scaling"]
            .map(|key| builder.number(config, key)),
        Multipliers::RootOfWidth(flag, usual) => {
            match builder.need(config.flag_or(flag, usual), usual) {
                true => [(config.count("hidden_size")? as f64).sqrt(), 1.0, 1.0],
                false => [1.0; 3],
            }
        }
    };
    if logits_divisor == 0.0 {
        builder.refuse(config.wrong("logits_scaling", "a number other than 0"));
    }
    builder.unused = match kind.routed.score {
        Score::Sigmoid(..) => &UNUSED_WITH_MTP,
        _ => &UNUSED,
    };
    const CAP: &str = "final_logit_softcapping";
    let described = builder.model(config, OuterTensors::llama(), |builder| {
        let layers = 0..config.layer_count()?;
        layers.map(|index| layer(config, builder, &kind, index)).collect()
    })?;
    let logits_softcap = match config.has(CAP) {
        true => Some(positive(config, CAP)?),
        false => None,
    };
    Ok(Architecture {
        embedding_multiplier,
        residual_multiplier,
        logits_divisor,
        logits_softcap,
        ..described
    })
}

fn layer(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    kind: &Kind,
    index: usize,
) -> Result<Layer, ConfigError> {
    let prefix = format!("model.layers.{index}");
    let hidden = config.count(config.present_key(&["hidden_size", "n_embd"]))?;
    let (Norms::Pre(names) | Norms::Post(names) | Norms::Both(names, _)) = kind.norms;
    let norm = |builder: &mut ArchitectureBuilder, name: &str| {
        builder.params.norm(format!("{prefix}.{name}.weight"), hidden)
    };
    let input_norm = norm(builder, names[0]);
    let attention = format!("{prefix}.self_attn");
    let mixer = if config.has("kv_lora_rank") {
        let shape = (LatentShape::of(config)?, config.count_unless_auto("q_lora_rank")?);
        builder.need(only_without(config, "attention_bias"), ());
        // transformers 5 writes the rotated channels under this name too.
        if builder.need(config.count_or("head_dim", shape.0.shared), 0) != shape.0.shared {
            builder.refuse(config.wrong("head_dim", "qk_rope_head_dim"));
        }
        let rope = Rope::of(config, shape.0.shared, RotaryFraction::All);
        let pairs = builder.need(config.flag_or("rope_interleave", true), true);
        let rope = builder.need(rope.map(|rope| Some((rope, pairs))), None);
        let latent = LatentAttention::declare(&mut builder.params, &attention, shape, rope);
        let growth = builder.need(Rope::growth(config), 1.0);
        Mixer::Latent(LatentAttention { scale: latent.scale * growth * growth, ..latent })
    } else {
        let shape = attention_shape(config, builder, kind, index)?;
        Mixer::Attention(Attention::declare(&mut builder.params, &attention, shape))
    };
    let post_norm = norm(builder, names[1]);
    let norm_position = match kind.norms {
        Norms::Pre(_) => NormPosition::Pre,
        Norms::Post(_) => NormPosition::Post,
        Norms::Both(_, after) => NormPosition::Both(after.map(|name| norm(builder, name))),
    };
    let (experts, mlp) = match config.expert_count(EXPERTS, 0)? {
        count if count > 0 && !is_dense(config, index)? => {
            let (experts, shared) = experts(config, builder, kind, &prefix, [hidden, count])?;
            (Some(experts), shared)
        }
        _ => {
            let inner = config.count(config.present_key(&["intermediate_size", "n_inner"]))?;
            let (params, prefix) = (&mut builder.params, format!("{prefix}.mlp"));
            let names = match kind.mlp {
                Mlp::Squared => ["up_proj", "down_proj"],
                _ => ["gate_up_proj", "down_proj"],
            };
            let widths = [hidden, inner];
            let mlp = match kind.mlp {
                Mlp::Gated => GatedMlp::llama(params, &prefix, widths),
                Mlp::Gelu => GatedMlp { gelu: true, ..GatedMlp::llama(params, &prefix, widths) },
                Mlp::Fused => GatedMlp::with_fused_gate(params, &prefix, names, widths, true),
                Mlp::Squared => GatedMlp::with_fused_gate(params, &prefix, names, widths, false),
            };
            (None, Some(mlp))
        }
    };
    Ok(Layer { norm_position, input_norm, mixer, post_norm, experts, mlp })
}

/// A number above 0.
fn positive(config: &Config, key: &str) -> Result<f64, ConfigError> {
    match config.number(key)? {
        number if number > 0.0 => Ok(number),
        _ => Err(config.wrong(key, "a number above 0")),
    }
}

/// Whether a layer of a model with experts is dense: by a list of all layers, or the first ones in some families and
/// those listed in Qwen's configs.
fn is_dense(config: &Config, index: usize) -> Result<bool, ConfigError> {
    if let Some((key, words)) = config.layer_words(&["mlp_layer_types"])? {
        return match words[index].as_str() {
            "dense" => Ok(true),
            "sparse" => Ok(false),
            _ => Err(config.wrong(key, "dense or sparse for each layer")),
        };
    }
    let listed = config.counts("mlp_only_layers")?.unwrap_or_default();
    let step = config.count_or("decoder_sparse_step", 1)?.max(1);
    let first = config.present_key(&["first_k_dense_replace", "num_dense_layers"]);
    Ok(index < config.count_or(first, 0)?
        || listed.contains(&index)
        || !(index + 1).is_multiple_of(step))
}

fn attention_shape(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    kind: &Kind,
    index: usize,
) -> Result<AttentionShape, ConfigError> {
    let shape = AttentionShape::of(config)?;
    let [qkv_bias, out_bias] = kind.biases.map(|(key, usual)| config.flag_or(key, usual));
    let window = builder.need(window(config, kind, index), None);
    let rope = rotation(config, kind, index, (shape.head_dim, window.is_some()));
    Ok(AttentionShape {
        scale: match kind.multipliers {
            Multipliers::Granite => builder.number(config, "attention_multiplier"),
            _ if kind.scale.is_empty() => shape.scale,
            _ => builder.number(config, kind.scale).powf(-0.5),
        },
        rope: builder.need(rope, None),
        rotates_pairs: kind.rotates_pairs,
        window,
        sinks: kind.sinks,
        softcap: match kind.softcap {
            "" => None,
            key if config.has(key) => builder.need(positive(config, key).map(Some), None),
            _ => None,
        },
        gate: if kind.gated { Gate::Separate } else { Gate::None },
        qk_norm: match kind.qk_norm {
            QkNorm::None => false,
            QkNorm::OfHead | QkNorm::OfAll => true,
            QkNorm::Flag(key) => config.flag_or(key, false)?,
        },
        norms_span_heads: matches!(kind.qk_norm, QkNorm::OfAll),
        biases: [qkv_bias?, out_bias?],
        fused: kind.fused_qkv,
        ..shape
    })
}

/// Sliding window of a layer in tokens.
fn window(config: &Config, kind: &Kind, index: usize) -> Result<Option<usize>, ConfigError> {
    const KEY: &str = "sliding_window";
    let listed = |usual: fn(&Config, usize) -> Result<bool, ConfigError>| {
        let Some((key, words)) = config.layer_words(&["layer_types"])? else {
            return usual(config, index);
        };
        match words[index].as_str() {
            "sliding_attention" => Ok(true),
            "full_attention" => Ok(false),
            _ => Err(config.wrong(key, "sliding_attention or full_attention")),
        }
    };
    let slides = match kind.windows {
        Windows::None => false,
        Windows::All => true,
        Windows::Listed(usual) => config.has(KEY) && listed(usual)?,
        Windows::Flag(usual) => config.flag_or("use_sliding_window", false)? && listed(usual)?,
    };
    if slides && config.has(KEY) { config.count(KEY).map(Some) } else { Ok(None) }
}

/// Rotary embedding of a layer.
fn rotation(
    config: &Config,
    kind: &Kind,
    index: usize,
    (head_dim, has_window): (usize, bool),
) -> Result<Option<Rope>, ConfigError> {
    let share = match config.get("rotary_dim").and_then(serde_json::Value::as_u64) {
        Some(width) if matches!(kind.share, RotaryFraction::Named(_)) => {
            RotaryFraction::Named(width as f64 / head_dim as f64)
        }
        _ => kind.share,
    };
    let of = |config: &Config| Rope::of(config, head_dim, share).map(Some);
    match kind.rotated {
        Rotated::All => of(config),
        Rotated::Listed if is_rotated(config, index)? => of(config),
        Rotated::WithWindow if has_window || !config.has("sliding_window") => of(config),
        Rotated::Listed | Rotated::WithWindow => Ok(None),
        Rotated::ByWindow => of(&config.with_rope_of(if has_window { "sliding" } else { "full" })),
        Rotated::ByBase => {
            const KEY: &str = "layer_rope_theta";
            let Some(bases) = config.get(KEY) else { return of(config) };
            let base =
                bases.as_array().filter(|bases| bases.len() == config.layer_count().unwrap_or(0));
            let base = base.and_then(|bases| bases[index].as_f64());
            match base.ok_or_else(|| config.wrong(KEY, "a number for each layer"))? {
                0.0 => Ok(None),
                base => of(&config.with_rope_base(base)),
            }
        }
    }
}

/// The routed experts and the shared ones.
fn experts(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    kind: &Kind,
    layer: &str,
    [hidden, count]: [usize; 2],
) -> Result<(Experts, Option<GatedMlp>), ConfigError> {
    let Routed { module, router, layout, score, grouped, shared } = kind.routed;
    const INNER: &str = "moe_intermediate_size";
    let inner = config.count(if config.has(INNER) { INNER } else { "intermediate_size" })?;
    let prefix = format!("{layer}.{module}");
    let per_token = builder.per_token(config, &["num_experts_per_tok"], count);
    let score = match score {
        Score::SoftmaxOfChosen => RouterScore::SoftmaxOfChosen,
        Score::Softmax => softmax(config, builder, false),
        Score::SoftmaxOfAll => {
            match config.text("topk_method") {
                Ok(None | Some("greedy")) => {}
                _ => builder.refuse(config.wrong("topk_method", "greedy")),
            }
            if builder.need(config.number_or("routed_scaling_factor", 1.0), 1.0) != 1.0 {
                builder.refuse(config.wrong("routed_scaling_factor", "1"));
            }
            RouterScore::SoftmaxOfAll
        }
        Score::Sigmoid(bias, sum_eps) => {
            let groups = match grouped {
                true => expert_groups(config, builder, &["n_group"], [count, per_token]),
                false => {
                    only_one_group(config, builder);
                    None
                }
            };
            let name = format!("{prefix}.{bias}");
            // In the magnitude of score differences, so that it changes the choice.
            let correction = builder.params.add(name, &[count], ParamInit::Uniform(-0.5, 0.5));
            let renormalise = builder.need(config.flag_or("norm_topk_prob", true), true);
            const SCALES: &[&str] =
                &["routed_scaling_factor", "router_scaling_factor", "route_scale"];
            let scale = config.number_or(config.present_key(SCALES), 1.0);
            let scale = builder.need(scale, 1.0);
            RouterScore::Sigmoid { correction, renormalise, sum_eps, scale, groups }
        }
    };
    let params = &mut builder.params;
    let router = params.projection(format!("{prefix}.{router}.weight"), count, hidden);
    let shape = ExpertsShape { prefix: &prefix, count, hidden, inner, gated: true };
    let experts = shape.declare(params, layout);
    let key = match shared {
        Shared::Counted => config.present_key(&["n_shared_experts", "num_shared_experts"]),
        Shared::Gated => "shared_expert_intermediate_size",
        Shared::Fused => "shared_intermediate_size",
    };
    let shared = match (shared, config.count_or(key, 0)?) {
        (_, 0) => None,
        (Shared::Counted, count) => {
            let widths = [hidden, count * inner];
            Some(GatedMlp::llama(params, &format!("{prefix}.shared_experts"), widths))
        }
        (Shared::Gated, inner) => Some(GatedMlp::with_token_gate(params, &prefix, [hidden, inner])),
        (Shared::Fused, inner) => {
            let (prefix, names) =
                (format!("{layer}.shared_mlp"), ["input_linear", "output_linear"]);
            Some(GatedMlp::with_fused_gate(params, &prefix, names, [hidden, inner], true))
        }
    };
    Ok((
        Experts { router, score, per_token, latent: None, clamped: None, experts, first: 0 },
        shared,
    ))
}
