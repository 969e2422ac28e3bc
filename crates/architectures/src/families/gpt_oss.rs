//! gpt-oss: attention with sinks, a sliding window in every other layer, and experts with interleaved gate and up rows.

use super::{ModelFamily, only_silu};
use crate::builder::{ArchitectureBuilder, OuterTensors};
use crate::layers::{Attention, AttentionShape, ClampedExperts, Experts, RouterScore, stacked};
use crate::params::{MatrixLayout, Projection};
use crate::rope::RotaryFraction;
use crate::{Architecture, Config, ConfigError, Layer, Mixer, NormPosition, Rope};

pub(super) const FAMILY: ModelFamily = ModelFamily {
    name: "gpt-oss",
    config_names: &["gpt_oss", "GptOssForCausalLM"],
    multimodal_types: &[],
    without_kernels: None,
    matches_keys: |_| false,
    read,
};

/// Defaults of the factor in the experts' sigmoid, and of the limit of gate and up.
const ALPHA: f64 = 1.702;
const LIMIT: f64 = 7.0;

fn read(config: &Config, mut builder: ArchitectureBuilder) -> Result<Architecture, ConfigError> {
    builder.need(only_silu(config), ());
    let packed = builder.need(is_packed(config), true);
    for key in ["hidden_size", "intermediate_size"] {
        if packed && !config.count(key)?.is_multiple_of(32) {
            builder.refuse(config.wrong(key, "a multiple of 32, as MXFP4 has it"));
        }
    }
    builder.model(config, OuterTensors::llama(), |builder| {
        let slides = slides(config)?.into_iter().enumerate();
        slides.map(|(index, slides)| layer(config, builder, index, (slides, packed))).collect()
    })
}

/// Whether experts' weights are stored as rows (MXFP4 or GGUF blocks): 16-bit weights are stored as transposes.
fn is_packed(config: &Config) -> Result<bool, ConfigError> {
    const METHOD: &str = "quant_method";
    let Some(part) = config.part("quantization_config")? else { return Ok(false) };
    match part.text(METHOD)? {
        Some("mxfp4" | "gguf") => Ok(true),
        _ => Err(part.wrong(METHOD, "mxfp4, or no quantization_config")),
    }
}

/// Which layers have a sliding window: every other one starting with the first, unless a list says otherwise.
fn slides(config: &Config) -> Result<Vec<bool>, ConfigError> {
    let Some((key, words)) = config.layer_words(&["layer_types"])? else {
        return Ok((0..config.layer_count()?).map(|index| index % 2 == 0).collect());
    };
    let slides = |word: &String| match word.as_str() {
        "sliding_attention" => Ok(true),
        "full_attention" => Ok(false),
        _ => Err(config.wrong(key, "sliding_attention or full_attention")),
    };
    words.iter().map(slides).collect()
}

fn layer(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    index: usize,
    (slides, packed): (bool, bool),
) -> Result<Layer, ConfigError> {
    let prefix = format!("model.layers.{index}");
    let hidden = config.count("hidden_size")?;
    let input_norm = builder.params.norm(format!("{prefix}.input_layernorm.weight"), hidden);
    let shape = AttentionShape::of(config)?;
    let window =
        if slides { builder.need(config.count("sliding_window").map(Some), None) } else { None };
    let shape = AttentionShape {
        rope: builder.need(Rope::of(config, shape.head_dim, RotaryFraction::All).map(Some), None),
        window,
        sinks: true,
        biases: [config.flag_or("attention_bias", true)?; 2],
        ..shape
    };
    let attention = Attention::declare(&mut builder.params, &format!("{prefix}.self_attn"), shape);
    let post_norm =
        builder.params.norm(format!("{prefix}.post_attention_layernorm.weight"), hidden);
    let experts = experts(config, builder, &format!("{prefix}.mlp"), packed)?;
    let mixer = Mixer::Attention(attention);
    Ok(Layer {
        norm_position: NormPosition::Pre,
        input_norm,
        mixer,
        post_norm,
        experts: Some(experts),
        mlp: None,
    })
}

fn experts(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    prefix: &str,
    packed: bool,
) -> Result<Experts, ConfigError> {
    let [hidden, inner] = [config.count("hidden_size")?, config.count("intermediate_size")?];
    const COUNT: &[&str] = &["num_local_experts", "num_experts"];
    let count = match config.expert_count(COUNT, 0)? {
        0 => return Err(config.missing(COUNT[0], "the number of experts")),
        count => count,
    };
    let per_token = builder.per_token(config, &["num_experts_per_tok", "experts_per_token"], count);
    const LIMITED: &str = "swiglu_limit";
    let limit = builder.need(config.number_or(LIMITED, LIMIT), LIMIT);
    if limit <= 0.0 {
        builder.refuse(config.wrong(LIMITED, "a number above 0"));
    }
    let alpha = builder.need(config.number_or("swiglu_alpha", ALPHA), ALPHA);
    let params = &mut builder.params;
    let router = params.projection(format!("{prefix}.router.weight"), count, hidden);
    let bias = params.bias(format!("{prefix}.router.bias"), count);
    let router = Projection { bias: vec![bias], ..router };
    let names = ["gate_up_proj", "down_proj"].map(|name| format!("{prefix}.experts.{name}"));
    let biases = names.clone().map(|name| format!("{name}_bias"));
    let experts = stacked(params, names, count, [hidden, inner]);
    let first = &experts[0];
    for (of, turns) in [(&first.gate_up, true), (&first.down, false)] {
        params.set_layout(
            of.rows[0].param,
            MatrixLayout { turns, transposed: !packed, ..MatrixLayout::default() },
        );
    }
    let [gate_up_bias, down_bias] = biases;
    let gate_up_bias = params.biases(gate_up_bias, [count, 2 * inner]);
    params.set_layout(gate_up_bias, MatrixLayout { turns: true, ..MatrixLayout::default() });
    let down_bias = params.biases(down_bias, [count, hidden]);
    let clamped = ClampedExperts { gate_up_bias, down_bias, limit, alpha };
    Ok(Experts {
        router,
        score: RouterScore::SoftmaxOfChosen,
        per_token,
        latent: None,
        clamped: Some(clamped),
        experts,
        first: 0,
    })
}
