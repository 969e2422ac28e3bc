//! Nemotron-H: one layer per letter of a pattern: Mamba-2, attention, feed-forward without a gate, experts.
//!
//! transformers clamps step sizes to `time_step_min` in prefill but not in decoding; NVIDIA's code and vLLM, as here,
//! do neither.

use super::{ModelFamily, expert_groups, only_without};
use crate::builder::{ArchitectureBuilder, OuterTensors};
use crate::layers::{
    Attention, AttentionShape, ExpertLayout, Experts, ExpertsShape, GatedMlp, Mamba2, Mamba2Shape,
    RouterScore, UNLIMITED_DT,
};
use crate::params::ParamInit;
use crate::{Architecture, Config, ConfigError, Layer, Mixer, NormPosition};

pub(super) const FAMILY: ModelFamily = ModelFamily {
    name: "nemotron-h",
    config_names: &["nemotron_h", "NemotronHForCausalLM"],
    multimodal_types: &[],
    without_kernels: Some(
        "The model's own code imports mamba-ssm when it is loaded and stops without it; transformers' own code takes a \
         slow path instead.",
    ),
    matches_keys: |_| false,
    read,
};

fn read(config: &Config, mut builder: ArchitectureBuilder) -> Result<Architecture, ConfigError> {
    builder.need(only(config, "mlp_hidden_act", "relu2"), ());
    builder.need(only(config, "mamba_hidden_act", "silu"), ());
    builder.need(only_without(config, "mlp_bias"), ());
    // Multi-token-prediction layers are not loaded.
    builder.unused = &["mtp."];
    let outer = OuterTensors {
        embedding: "backbone.embeddings.weight".to_owned(),
        norm: "backbone.norm_f.weight".to_owned(),
        tied: false,
    };
    builder.model(config, outer, |builder| {
        let layers = letters(config)?.into_iter().enumerate();
        layers.map(|(index, letter)| layer(config, builder, index, letter)).collect()
    })
}

fn layer(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    index: usize,
    letter: char,
) -> Result<Layer, ConfigError> {
    let prefix = format!("backbone.layers.{index}");
    let hidden = config.count("hidden_size")?;
    let norm = builder.params.norm(format!("{prefix}.norm.weight"), hidden);
    let prefix = format!("{prefix}.mixer");
    // One norm, since every layer has one part only.
    let mut layer = Layer {
        norm_position: NormPosition::Pre,
        input_norm: norm,
        mixer: Mixer::None,
        post_norm: norm,
        experts: None,
        mlp: None,
    };
    match letter {
        'M' => {
            let shape = mamba_shape(config, builder)?;
            // transformers reads the first key, the model's own code the second; published models have neither.
            let projections =
                config.flag_or("use_bias", false)? || config.flag_or("mamba_proj_bias", false)?;
            let biases = [config.flag_or("use_conv_bias", true)?, projections];
            let mixer = Mamba2::declare(&mut builder.params, &prefix, shape, biases);
            layer.mixer = Mixer::Mamba2(mixer);
        }
        '*' => {
            let shape = AttentionShape::of(config)?;
            layer.mixer = Mixer::Attention(Attention::declare(&mut builder.params, &prefix, shape));
        }
        'E' => {
            let (experts, shared) = experts(config, builder, &prefix, hidden)?;
            (layer.experts, layer.mlp) = (Some(experts), shared);
        }
        _ => layer.mlp = Some(mlp(builder, &prefix, [hidden, config.count("intermediate_size")?])),
    }
    Ok(layer)
}

/// Refuses an activation other than the one of the published models.
fn only(config: &Config, key: &str, known: &str) -> Result<(), ConfigError> {
    match config.text(key)? {
        None => Ok(()),
        Some(word) if word == known => Ok(()),
        Some(_) => Err(config.wrong(key, known)),
    }
}

/// The characters of the pattern, or of the list in newer configs.
fn letters(config: &Config) -> Result<Vec<char>, ConfigError> {
    const PATTERN: &str = "hybrid_override_pattern";
    const KNOWN: &str = "M*-E";
    let letters: Vec<char> = match config.text(PATTERN)? {
        Some(pattern) => pattern.chars().collect(),
        None => {
            let wanted = "one letter for each layer";
            let words = config.words(&["layers_block_type", "layer_types"])?;
            let (_, words) = words.ok_or_else(|| config.missing(PATTERN, wanted))?;
            let letter = |word: String| match word.as_str() {
                "mamba" | "mamba2" | "linear_attention" => 'M',
                "attention" | "full_attention" => '*',
                "moe" => 'E',
                _ => '-',
            };
            words.into_iter().map(letter).collect()
        }
    };
    if let Some(letter) = letters.iter().find(|letter| !KNOWN.contains(**letter)) {
        return Err(config.wrong(PATTERN, format!("characters of {KNOWN}: it has a `{letter}`")));
    }
    let key = "num_hidden_layers";
    match (letters.len(), config.get(key).and_then(|count| count.as_u64())) {
        (0 | 4097.., _) => Err(config.wrong(PATTERN, "1 to 4096 layers")),
        (len, Some(count)) if count != len as u64 => {
            Err(config.wrong(key, format!("{len}, the length of the layer pattern")))
        }
        _ => Ok(letters),
    }
}

fn mamba_shape(
    config: &Config,
    builder: &mut ArchitectureBuilder,
) -> Result<Mamba2Shape, ConfigError> {
    let groups = config.present_key(&["n_groups", "mamba_n_groups"]);
    let shape = Mamba2Shape {
        hidden: config.count("hidden_size")?,
        heads: config.count("mamba_num_heads")?,
        head_dim: config.count("mamba_head_dim")?,
        groups: config.count_or(groups, 8)?.max(1),
        state: config.count("ssm_state_size")?,
        taps: config.taps("conv_kernel")?,
        dt_limits: builder.need(config.limits("time_step_limit", UNLIMITED_DT), UNLIMITED_DT),
    };
    shape.check(config, [groups, "conv_kernel"], builder)?;
    Ok(shape)
}

fn mlp(builder: &mut ArchitectureBuilder, prefix: &str, widths: [usize; 2]) -> GatedMlp {
    GatedMlp::with_fused_gate(&mut builder.params, prefix, ["up_proj", "down_proj"], widths, false)
}

/// Experts without a gate, and the shared expert.
fn experts(
    config: &Config,
    builder: &mut ArchitectureBuilder,
    prefix: &str,
    hidden: usize,
) -> Result<(Experts, Option<GatedMlp>), ConfigError> {
    let keys = ["n_routed_experts", "num_experts"];
    let count = match config.expert_count_of(&keys, 0, letters(config)?.len())? {
        0 => return Err(config.missing(keys[0], "the number of experts")),
        count => count,
    };
    let inner = config.count("moe_intermediate_size")?;
    // The largest models route a narrower vector, with projections before and after the experts.
    let latent = if config.has("moe_latent_size") {
        let width = config.count("moe_latent_size")?;
        let mut project = |name: &str, outputs, inputs| {
            let name = format!("{prefix}.{name}_latent_proj.weight");
            builder.params.projection(name, outputs, inputs)
        };
        Some([project("fc1", width, hidden), project("fc2", hidden, width)])
    } else {
        None
    };
    let width = latent.as_ref().map_or(hidden, |[to, _]| to.outputs());
    let per_token = builder.per_token(config, &["num_experts_per_tok"], count);
    let groups = expert_groups(config, builder, &["n_group"], [count, per_token]);
    let router = builder.params.projection(format!("{prefix}.gate.weight"), count, hidden);
    let correction = format!("{prefix}.gate.e_score_correction_bias");
    let score = RouterScore::Sigmoid {
        correction: builder.params.add(correction, &[count], ParamInit::Uniform(-0.5, 0.5)),
        renormalise: builder.need(config.flag_or("norm_topk_prob", true), true),
        sum_eps: 1e-20,
        scale: builder.number(config, "routed_scaling_factor"),
        groups,
    };
    let shape = ExpertsShape { prefix, count, hidden: width, inner, gated: false };
    let names = ExpertLayout::Each(["gate_proj", "up_proj", "down_proj"]);
    let experts = shape.declare(&mut builder.params, names);
    let shared = match config.count_or("moe_shared_expert_intermediate_size", 0)? {
        0 => None,
        shared => Some(mlp(builder, &format!("{prefix}.shared_experts"), [hidden, shared])),
    };
    Ok((Experts { router, score, per_token, latent, clamped: None, experts, first: 0 }, shared))
}
