//! Attention in every layer: Llama, Mistral, Qwen, Mixtral and others with their keys.
//!
//! A config that is recognized by its keys alone is described with Llama's names.

use super::{ModelFamily, only_silu, only_without, softmax};
use crate::architecture::unknown;
use crate::builder::{ArchitectureBuilder, OuterTensors};
use crate::layers::{
    Attention, AttentionShape, ExpertLayout, Experts, ExpertsShape, GatedMlp, LatentAttention,
    LatentShape, RouterScore,
};
use crate::rope::RotaryFraction;
use crate::{Architecture, Config, ConfigError, Layer, Mixer, NormPosition, Rope};

pub(super) const FAMILY: ModelFamily = ModelFamily {
    name: "plain-attention",
    config_names: &[
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "granite",
        "phi3",
        "LlamaForCausalLM",
    ],
    multimodal_types: &[],
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

/// Kinds whose layers are known to be only these. A model recognized by its keys alone may have others.
const RUN: &[&str] =
    &["llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "granite", "phi3"];

fn read(config: &Config, mut builder: ArchitectureBuilder) -> Result<Architecture, ConfigError> {
    if !RUN.contains(&config.kind().unwrap_or("llama")) {
        builder.refuse(unknown(config, true));
    }
    builder.need(only_silu(config), ());
    builder.need(only_without(config, "mlp_bias"), ());
    let tied = matches!(config.kind(), Some("gemma" | "gemma2" | "gemma3_text"));
    let is_granite = config.kind() == Some("granite");
    let mut multiplier = |key| if is_granite { builder.number(config, key) } else { 1.0 };
    let [embedding_multiplier, residual_multiplier, logits_divisor] =
        ["embedding_multiplier", "residual_multiplier", "logits_scaling"].map(&mut multiplier);
    if logits_divisor == 0.0 {
        builder.refuse(config.wrong("logits_scaling", "a number other than 0"));
    }
    // Some files of Llama 2 contain this derived tensor.
    builder.unused = &["rotary_emb.inv_freq"];
    let described = builder.model(
        config,
        OuterTensors { tied, ..OuterTensors::with_prefix("model", "norm") },
        |builder| (0..config.layer_count()?).map(|index| layer(config, builder, index)).collect(),
    )?;
    Ok(Architecture { embedding_multiplier, residual_multiplier, logits_divisor, ..described })
}

fn layer(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    index: usize,
) -> Result<Layer, ConfigError> {
    let prefix = format!("model.layers.{index}");
    let hidden = config.count(config.present_key(&["hidden_size", "n_embd"]))?;
    let input_norm = builder.params.norm(format!("{prefix}.input_layernorm.weight"), hidden);
    let attention = format!("{prefix}.self_attn");
    let mixer = if config.has("kv_lora_rank") {
        let (shape, q_rank) = (LatentShape::of(config)?, config.count_unless_auto("q_lora_rank")?);
        Mixer::Latent(LatentAttention::declare(&mut builder.params, &attention, shape, q_rank))
    } else {
        let shape = attention_shape(config, builder, index)?;
        Mixer::Attention(Attention::declare(&mut builder.params, &attention, shape))
    };
    let post_norm =
        builder.params.norm(format!("{prefix}.post_attention_layernorm.weight"), hidden);
    let (experts, mlp) = match config.expert_count(EXPERTS, 0)? {
        count if count > 0 && !is_dense(config, index)? => {
            let (experts, shared) = experts(config, builder, &prefix, [hidden, count])?;
            (Some(experts), shared)
        }
        _ => {
            let inner = config.count(config.present_key(&["intermediate_size", "n_inner"]))?;
            let (params, prefix) = (&mut builder.params, format!("{prefix}.mlp"));
            let names = ["gate_up_proj", "down_proj"];
            let mlp = match config.kind() {
                Some("phi3") => {
                    GatedMlp::with_fused_gate(params, &prefix, names, [hidden, inner], true)
                }
                _ => GatedMlp::llama(params, &prefix, [hidden, inner]),
            };
            (None, Some(mlp))
        }
    };
    Ok(Layer { norm_position: NormPosition::Pre, input_norm, mixer, post_norm, experts, mlp })
}

/// Whether a layer of a model with experts is dense: the first ones in some families, those listed in Qwen's configs.
fn is_dense(config: &Config, index: usize) -> Result<bool, ConfigError> {
    let listed = config.counts("mlp_only_layers")?.unwrap_or_default();
    let step = config.count_or("decoder_sparse_step", 1)?.max(1);
    Ok(index < config.count_or("first_k_dense_replace", 0)?
        || listed.contains(&index)
        || !(index + 1).is_multiple_of(step))
}

fn attention_shape(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    index: usize,
) -> Result<AttentionShape, ConfigError> {
    let shape = AttentionShape::of(config)?;
    let kind = config.kind().unwrap_or_default();
    let share = if kind == "phi3" { RotaryFraction::Named(1.0) } else { RotaryFraction::All };
    Ok(AttentionShape {
        scale: match kind {
            "granite" => builder.number(config, "attention_multiplier"),
            _ => shape.scale,
        },
        rope: builder.need(Rope::of(config, shape.head_dim, share).map(Some), None),
        window: builder.need(window(config, kind, index), None),
        qk_norm: matches!(kind, "qwen3" | "qwen3_moe"),
        biases: if kind == "qwen2" { [true, false] } else { shape.biases },
        fused: kind == "phi3",
        ..shape
    })
}

/// Sliding window of a layer in tokens. Llama and Granite ignore the key; Qwen's configs have flags that enable it and
/// the first layer it applies to.
fn window(config: &Config, kind: &str, index: usize) -> Result<Option<usize>, ConfigError> {
    const KEY: &str = "sliding_window";
    let slides = match kind {
        "mistral" | "mixtral" | "phi3" => true,
        "qwen2" | "qwen3" | "qwen3_moe" if config.flag_or("use_sliding_window", false)? => {
            match config.layer_words(&["layer_types"])? {
                Some((_, words)) => words[index] == "sliding_attention",
                // Qwen3-MoE has a sliding window in every layer.
                None if kind == "qwen3_moe" => true,
                None => index >= config.count("max_window_layers")?,
            }
        }
        _ => false,
    };
    if slides && config.has(KEY) { config.count(KEY).map(Some) } else { Ok(None) }
}

/// Mixtral's experts have other names; some models have shared experts in addition to routed ones.
fn experts(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    prefix: &str,
    [hidden, count]: [usize; 2],
) -> Result<(Experts, Option<GatedMlp>), ConfigError> {
    let inner =
        config.count(config.present_key(&["moe_intermediate_size", "intermediate_size"]))?;
    let (prefix, names) = match config.kind() {
        Some("mixtral") => (format!("{prefix}.block_sparse_moe"), ["w1", "w3", "w2"]),
        _ => (format!("{prefix}.mlp"), ["gate_proj", "up_proj", "down_proj"]),
    };
    let per_token = builder.per_token(config, &["num_experts_per_tok"], count);
    let score = match config.kind() {
        Some("qwen3_moe") => softmax(config, builder, false),
        _ => RouterScore::SoftmaxOfChosen,
    };
    let params = &mut builder.params;
    let router = params.projection(format!("{prefix}.gate.weight"), count, hidden);
    let shape = ExpertsShape { prefix: &prefix, count, hidden, inner, gated: true };
    let experts = shape.declare(params, ExpertLayout::Each(names));
    let shared = match config.count_or("n_shared_experts", 0)? {
        0 => None,
        shared => {
            let widths = [hidden, shared * inner];
            Some(GatedMlp::llama(params, &format!("{prefix}.shared_experts"), widths))
        }
    };
    Ok((
        Experts { router, score, per_token, latent: None, clamped: None, experts, first: 0 },
        shared,
    ))
}
