//! Falcon-H1: attention and Mamba-2 side by side in every layer.

use super::Family;
use crate::draft::{Around, Draft};
use crate::layers::{Attention, AttentionShape, GatedMlp, Mamba2Shape, Parallel};
use crate::{Architecture, Config, ConfigError, Layer, Mixer, Rope};

pub(super) const FAMILY: Family = Family {
    name: "falcon-h1",
    known_by: &["falcon_h1", "FalconH1ForCausalLM"],
    runs: false,
    inside: false,
    demands: None,
    recognises: |_| false,
    read,
};

fn read(config: &Config, draft: Draft) -> Result<Architecture, ConfigError> {
    draft.model(config, Around::under("model", "final_layernorm"), |draft| {
        (0..config.layer_count()?).map(|index| layer(config, draft, index)).collect()
    })
}

fn layer(config: &Config, draft: &mut Draft, index: usize) -> Result<Layer, ConfigError> {
    let prefix = format!("model.layers.{index}");
    let widths = [config.count("hidden_size")?, config.count("intermediate_size")?];
    let attention = AttentionShape::of(config)?;
    let rope = draft.need(Rope::of(config, attention.head_dim, 1.0).map(Some), None);
    let attention = AttentionShape { rope, ..attention };
    let shape = Mamba2Shape::of(config, draft)?;
    let biases =
        [config.flag_or("mamba_conv_bias", true)?, config.flag_or("mamba_proj_bias", false)?];
    let normed = config.flag_or("mamba_rms_norm", false)?;
    let params = &mut draft.params;
    let input_norm = params.norm(format!("{prefix}.input_layernorm.weight"), widths[0]);
    let attention = Attention::declare(params, &format!("{prefix}.self_attn"), attention);
    let mamba = format!("{prefix}.mamba");
    let mixer = Parallel::declare(params, &mamba, attention, shape, (biases, normed));
    let post_norm = params.norm(format!("{prefix}.pre_ff_layernorm.weight"), widths[0]);
    let mlp = GatedMlp::usual(params, &format!("{prefix}.feed_forward"), widths);
    Ok(Layer {
        input_norm,
        mixer: Mixer::Parallel(mixer),
        post_norm,
        experts: None,
        mlp: Some(mlp),
    })
}
