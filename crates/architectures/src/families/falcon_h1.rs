//! Falcon-H1: attention and Mamba-2 in parallel in every layer, with multipliers of projections.

use super::{ModelFamily, only_silu, only_without};
use crate::draft::{Around, Draft};
use crate::layers::{
    Attention, AttentionShape, GatedMlp, Mamba2, Mamba2Shape, MambaFactors, Parallel,
};
use crate::rope::RotaryFraction;
use crate::{Architecture, Config, ConfigError, Layer, Mixer, NormPosition, Rope};

pub(super) const FAMILY: ModelFamily = ModelFamily {
    name: "falcon-h1",
    known_by: &["falcon_h1", "FalconH1ForCausalLM"],
    inside: &[],
    demands: None,
    recognises: |_| false,
    read,
};

fn read(config: &Config, mut draft: Draft) -> Result<Architecture, ConfigError> {
    draft.need(only_silu(config), ());
    for bias in ["attention_bias", "mamba_proj_bias", "projectors_bias", "mlp_bias"] {
        draft.need(only_without(config, bias), ());
    }
    let embedding_multiplier = factor(config, &mut draft, "embedding_multiplier");
    let logits = nonzero(config, &mut draft, "lm_head_multiplier");
    let described = draft.model(config, Around::under("model", "final_layernorm"), |draft| {
        (0..config.layer_count()?).map(|index| layer(config, draft, index)).collect()
    })?;
    Ok(Architecture { embedding_multiplier, logits_divisor: 1.0 / logits, ..described })
}

/// A multiplier, 1 by default.
fn factor(config: &Config, draft: &mut Draft, key: &str) -> f64 {
    draft.need(config.number_or(key, 1.0), f64::NAN)
}

fn nonzero(config: &Config, draft: &mut Draft, key: &str) -> f64 {
    let factor = factor(config, draft, key);
    if factor == 0.0 {
        draft.refuse(config.wrong(key, NOT_ZERO));
    }
    factor
}

const NOT_ZERO: &str = "numbers other than 0";

/// A list of nonzero multipliers.
fn factors<const N: usize>(config: &Config, draft: &mut Draft, key: &str) -> [f64; N] {
    let factors = draft.need(config.factors(key), [f64::NAN; N]);
    if factors.contains(&0.0) {
        draft.refuse(config.wrong(key, NOT_ZERO));
    }
    factors
}

fn layer(config: &Config, draft: &mut Draft, index: usize) -> Result<Layer, ConfigError> {
    let prefix = format!("model.layers.{index}");
    let widths = [config.count("hidden_size")?, config.count("intermediate_size")?];
    let input_norm = draft.params.norm(format!("{prefix}.input_layernorm.weight"), widths[0]);
    let shape = attention_shape(config, draft)?;
    let attention = Attention::declare(&mut draft.params, &format!("{prefix}.self_attn"), shape);
    let mamba = mamba(config, draft, &format!("{prefix}.mamba"))?;
    let post_norm = draft.params.norm(format!("{prefix}.pre_ff_layernorm.weight"), widths[0]);
    let mlp = GatedMlp {
        factors: factors(config, draft, "mlp_multipliers"),
        ..GatedMlp::usual(&mut draft.params, &format!("{prefix}.feed_forward"), widths)
    };
    let mixer = Mixer::Parallel(Box::new(Parallel { attention, mamba }));
    Ok(Layer {
        norm_position: NormPosition::Pre,
        input_norm,
        mixer,
        post_norm,
        experts: None,
        mlp: Some(mlp),
    })
}

fn attention_shape(config: &Config, draft: &mut Draft) -> Result<AttentionShape, ConfigError> {
    let shape = AttentionShape::of(config)?;
    let mut factor = |key| factor(config, draft, key);
    Ok(AttentionShape {
        // The key multiplier affects only products with queries.
        scale: shape.scale * factor("key_multiplier"),
        factors: ["attention_in_multiplier", "attention_out_multiplier"].map(&mut factor),
        rope: draft.need(Rope::of(config, shape.head_dim, RotaryFraction::All).map(Some), None),
        ..shape
    })
}

fn mamba(config: &Config, draft: &mut Draft, prefix: &str) -> Result<Mamba2, ConfigError> {
    let shape = Mamba2Shape::of(config, draft)?;
    let biases =
        [config.flag_or("mamba_conv_bias", true)?, config.flag_or("mamba_proj_bias", false)?];
    let input = nonzero(config, draft, "ssm_in_multiplier");
    let parts = factors(config, draft, "ssm_multipliers").map(|factor| input * factor);
    let factors = MambaFactors { parts, output: factor(config, draft, "ssm_out_multiplier") };
    let norm_before_gate = draft.need(config.flag_or("mamba_norm_before_gate", true), true);
    let normed = config.flag_or("mamba_rms_norm", false)?;
    let declared = match normed {
        true => Mamba2::declare(&mut draft.params, prefix, shape, biases),
        false => Mamba2::without_norm(&mut draft.params, prefix, shape, biases),
    };
    Ok(Mamba2 { norm_before_gate: normed && norm_before_gate, ..declared.times(factors) })
}
