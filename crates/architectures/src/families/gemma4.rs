//! Gemma 4: sliding windows and full attention with different heads, values with a norm, layers times a scalar, and in
//! some sizes experts whose output is added to that of a dense part.

use super::{ModelFamily, only_without};
use crate::builder::{ArchitectureBuilder, OuterTensors};
use crate::layers::{
    Attention, AttentionShape, ExpertLayout, Experts, ExpertsShape, GatedMlp, RouterScore,
};
use crate::params::ParamInit;
use crate::rope::RotaryFraction;
use crate::{Architecture, Config, ConfigError, Layer, Mixer, NormPosition, Rope};

pub(super) const FAMILY: ModelFamily = ModelFamily {
    name: "gemma4",
    config_names: &["gemma4_text", "Gemma4ForCausalLM"],
    multimodal_types: &["gemma4"],
    without_kernels: None,
    matches_keys: |_| false,
    read,
};

fn read(config: &Config, mut builder: ArchitectureBuilder) -> Result<Architecture, ConfigError> {
    const ACTIVATION: &str = "hidden_activation";
    const BOTH_WAYS: &str = "use_bidirectional_attention";
    const CAP: &str = "final_logit_softcapping";
    match config.text(ACTIVATION) {
        Ok(None | Some("gelu_pytorch_tanh")) => {}
        _ => builder.refuse(config.wrong(ACTIVATION, "gelu_pytorch_tanh")),
    }
    builder.need(only_without(config, "attention_bias"), ());
    // Sizes for phones have inputs for each layer, and layers that read the keys of others.
    for key in ["hidden_size_per_layer_input", "num_kv_shared_layers"] {
        if builder.need(config.count_or(key, 0), 0) > 0 {
            builder.refuse(config.wrong(key, "0: only the sizes without it run"));
        }
    }
    // Images are not read, so that the attention of their tokens does not matter.
    match config.text(BOTH_WAYS) {
        Ok(None | Some("vision")) => {}
        _ => builder.refuse(config.wrong(BOTH_WAYS, "null or vision")),
    }
    builder.unused = &["vision_tower.", "audio_tower.", "embed_vision.", "embed_audio."];
    let outer = OuterTensors { tied: true, ..OuterTensors::llama() };
    let described = builder.model(config, outer, |builder| {
        let slides = slides(config)?.into_iter().enumerate();
        slides.map(|(index, slides)| layer(config, builder, index, slides)).collect()
    })?;
    Ok(Architecture {
        embedding_multiplier: (described.hidden as f64).sqrt(),
        logits_softcap: match config.has(CAP) {
            true => Some(config.number(CAP)?),
            false => None,
        },
        ..described
    })
}

/// Which layers have a sliding window. The last one never has.
fn slides(config: &Config) -> Result<Vec<bool>, ConfigError> {
    let count = config.layer_count()?;
    let mut slides = match config.layer_words(&["layer_types"])? {
        None => (1..=count).map(|layer| layer % 6 != 0).collect(),
        Some((key, words)) => {
            let slides = |word: &String| match word.as_str() {
                "sliding_attention" => Ok(true),
                "full_attention" => Ok(false),
                _ => Err(config.wrong(key, "sliding_attention or full_attention")),
            };
            words.iter().map(slides).collect::<Result<Vec<_>, _>>()?
        }
    };
    slides[count - 1] = false;
    Ok(slides)
}

fn layer(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    index: usize,
    slides: bool,
) -> Result<Layer, ConfigError> {
    let prefix = format!("model.layers.{index}");
    let hidden = config.count("hidden_size")?;
    let norm = |builder: &mut ArchitectureBuilder, name: &str| {
        builder.params.norm(format!("{prefix}.{name}.weight"), hidden)
    };
    let input_norm = norm(builder, "input_layernorm");
    let shape = attention_shape(config, builder, index, slides)?;
    let attention = format!("{prefix}.self_attn");
    let mixer = Mixer::Attention(Attention::declare(&mut builder.params, &attention, shape));
    let post_norm = norm(builder, "pre_feedforward_layernorm");
    let after = ["post_attention_layernorm", "post_feedforward_layernorm"];
    let after = after.map(|name| norm(builder, name));
    let widths = [hidden, config.count("intermediate_size")?];
    let mlp = GatedMlp::llama(&mut builder.params, &format!("{prefix}.mlp"), widths);
    let (experts, of_experts) = match config.flag_or("enable_moe_block", false)? {
        false => (None, None),
        true => {
            let experts = experts(config, builder, &prefix, hidden)?;
            let norms = [
                "post_feedforward_layernorm_1",
                "pre_feedforward_layernorm_2",
                "post_feedforward_layernorm_2",
            ];
            (Some(experts), Some(norms.map(|name| norm(builder, name))))
        }
    };
    let scalar = format!("{prefix}.layer_scalar");
    let scalar = builder.params.add(scalar, &[1], ParamInit::Uniform(0.5, 1.0));
    Ok(Layer {
        norm_position: NormPosition::Scaled { after, experts: of_experts, scalar },
        input_norm,
        mixer,
        post_norm,
        experts,
        mlp: Some(GatedMlp { gelu: true, ..mlp }),
    })
}

fn attention_shape(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    index: usize,
    slides: bool,
) -> Result<AttentionShape, ConfigError> {
    const DIM: &str = "head_dim";
    const KV_HEADS: &str = "num_key_value_heads";
    let shape = AttentionShape::of(config)?;
    let shared = config.flag_or("attention_k_eq_v", false)? && !slides;
    let (mut head_dim, mut kv_heads) = (shape.head_dim, shape.kv_heads);
    // transformers writes the heads of each layer, and published files those of layers without a window.
    match config.part("per_layer_config")? {
        Some(layers) => {
            if let Some(own) = layers.part(&index.to_string())? {
                if let Some(key) = own.keys().find(|key| ![DIM, KV_HEADS].contains(key)) {
                    builder.refuse(own.wrong(key, "only other heads in a layer"));
                }
                (head_dim, kv_heads) =
                    (own.size_or(DIM, head_dim)?, own.size_or(KV_HEADS, kv_heads)?);
            }
        }
        None if slides => {}
        None => {
            head_dim = config.size_or("global_head_dim", 512)?;
            if shared {
                kv_heads = config.size_or("num_global_key_value_heads", kv_heads)?;
            }
        }
    }
    if !shape.heads.is_multiple_of(kv_heads) {
        return Err(config.wrong(KV_HEADS, format!("a divisor of the {} heads", shape.heads)));
    }
    let window =
        if slides { builder.need(config.count("sliding_window").map(Some), None) } else { None };
    let (layers, share) = match slides {
        true => ("sliding", RotaryFraction::All),
        false => ("full", RotaryFraction::Named(1.0)),
    };
    let rope = Rope::of(&config.with_rope_of(layers), head_dim, share);
    Ok(AttentionShape {
        kv_heads,
        head_dim,
        scale: 1.0,
        rope: builder.need(rope.map(Some), None),
        window,
        qk_norm: true,
        value_norm: true,
        values_are_keys: shared,
        ..shape
    })
}

fn experts(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    prefix: &str,
    hidden: usize,
) -> Result<Experts, ConfigError> {
    const COUNT: &str = "num_experts";
    let count = match config.expert_count(&[COUNT], 0)? {
        0 => return Err(config.missing(COUNT, "the number of experts")),
        count => count,
    };
    let inner = config.count("moe_intermediate_size")?;
    let per_token = builder.per_token(config, &["top_k_experts"], count);
    let params = &mut builder.params;
    let score = RouterScore::ScaledSoftmax {
        norm: params.plain_norm(format!("{prefix}.router.scale"), hidden),
        scales: params.plain_norm(format!("{prefix}.router.per_expert_scale"), count),
    };
    let router = params.projection(format!("{prefix}.router.proj.weight"), count, hidden);
    let shape = ExpertsShape { prefix, count, hidden, inner, gated: true };
    let layout = ExpertLayout::Stacked(["experts.gate_up_proj", "experts.down_proj"]);
    let mut experts = shape.declare(params, layout);
    experts.iter_mut().for_each(|expert| expert.gelu = true);
    Ok(Experts { router, score, per_token, latent: None, clamped: None, experts, first: 0 })
}
