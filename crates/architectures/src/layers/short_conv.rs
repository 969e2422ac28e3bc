use crate::builder::ArchitectureBuilder;
use crate::params::{ParamId, ParamInit, Params, Projection, fan_in};
use crate::{Config, ConfigError};

/// A short convolution between two products: `out(C * conv(B * x))`, with `[B, C, x]` projected from the input.
#[derive(Debug, Clone)]
pub struct ShortConv {
    /// Channels of each of the three: the hidden size, or a rank's part of it.
    pub channels: usize,
    /// Taps of the convolution.
    pub taps: usize,
    /// Computes B, C and x, in this order.
    pub in_proj: Projection,
    /// `[channels, 1, taps]`.
    pub conv_weight: ParamId,
    /// `[channels]`.
    pub conv_bias: Option<ParamId>,
    /// Output projection.
    pub out_proj: Projection,
}

impl ShortConv {
    /// Declares the parameters under `prefix` from the keys of LFM2's configs.
    pub(crate) fn declare(
        config: &Config,
        builder: &mut ArchitectureBuilder,
        prefix: &str,
    ) -> Result<Self, ConfigError> {
        const TAPS: &str = "conv_L_cache";
        let hidden = config.count("hidden_size")?;
        let taps = if config.has(TAPS) { config.count(TAPS)? } else { 3 };
        if !(2..=4).contains(&taps) {
            builder.refuse(config.wrong(TAPS, "2 to 4 taps"));
        }
        let biased = config.flag_or("conv_bias", false)?;
        let params: &mut Params = &mut builder.params;
        let mut project = |part: &str, outputs| {
            let made = params.projection(format!("{prefix}.{part}.weight"), outputs, hidden);
            let bias = biased.then(|| params.bias(format!("{prefix}.{part}.bias"), outputs));
            Projection { bias: bias.into_iter().collect(), ..made }
        };
        let (in_proj, out_proj) = (project("in_proj", 3 * hidden), project("out_proj", hidden));
        let weight = format!("{prefix}.conv.weight");
        let small = ParamInit::Uniform(-0.5, 0.5);
        Ok(Self {
            channels: hidden,
            taps,
            in_proj,
            conv_weight: params.add(weight, &[hidden, 1, taps], fan_in(taps)),
            conv_bias: biased.then(|| params.add(format!("{prefix}.conv.bias"), &[hidden], small)),
            out_proj,
        })
    }
}
