use crate::builder::ArchitectureBuilder;
use crate::params::{ParamId, ParamInit, Params, Projection, fan_in};
use crate::{Config, ConfigError};

/// A Gated DeltaNet mixer: the delta rule with one decay per head, after one convolution over queries, keys and values.
#[derive(Debug, Clone)]
pub struct GatedDelta {
    /// The shapes.
    pub shape: GatedDeltaShape,
    /// Queries, keys, values and output gates, then the write strength and the decay of each value head.
    pub project: Projection,
    /// Taps over queries, keys and values, `[channels, 1, taps]`.
    pub conv_weight: ParamId,
    /// Added to the logits of the decay.
    pub dt_bias: ParamId,
    /// The logarithm of each value head's rate.
    pub a_log: ParamId,
    /// Norm of each value head before its gate; its weight has no offset.
    pub norm: ParamId,
    /// Output projection.
    pub out: Projection,
}

/// The shapes of a [`GatedDelta`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedDeltaShape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Value heads, a multiple of the key heads.
    pub value_heads: usize,
    /// Channels of a head's key.
    pub key_dim: usize,
    /// Channels of a head's value.
    pub value_dim: usize,
    /// Taps of the convolution.
    pub taps: usize,
}

impl GatedDeltaShape {
    /// Reads the keys of Qwen's configs.
    pub(crate) fn of(
        config: &Config,
        builder: &mut ArchitectureBuilder,
    ) -> Result<Self, ConfigError> {
        let key_heads = config.count("linear_num_key_heads")?;
        let value_heads = config.count("linear_num_value_heads")?;
        if value_heads % key_heads != 0 {
            let wanted = format!("a multiple of the {key_heads} key heads");
            return Err(config.wrong("linear_num_value_heads", wanted));
        }
        const TAPS: &str = "linear_conv_kernel_dim";
        let taps = config.taps(TAPS)?;
        if !(2..=4).contains(&taps) {
            builder.refuse(config.wrong(TAPS, "2 to 4 taps"));
        }
        Ok(Self {
            hidden: config.count("hidden_size")?,
            key_heads,
            value_heads,
            key_dim: config.count("linear_key_head_dim")?,
            value_dim: config.count("linear_value_head_dim")?,
            taps,
        })
    }

    /// Channels of all value heads.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Separates the parts of a projection whose rows are interleaved by key head: query, key, values and gates of its
    /// value heads; after all of them, also by key head, write strengths and decays.
    fn apart(&self, all: &Projection) -> Projection {
        let own = self.value_heads / self.key_heads;
        let widths = [self.key_dim, self.key_dim, own * self.value_dim, own * self.value_dim];
        let head: usize = widths.iter().sum();
        let parts = (0..4).flat_map(|part| {
            let first: usize = widths[..part].iter().sum();
            (0..self.key_heads).map(move |at| (at * head + first, widths[part]))
        });
        let behind = self.key_heads * head;
        let scalars = (0..2).flat_map(|part| {
            (0..self.key_heads).map(move |at| (behind + (2 * at + part) * own, own))
        });
        all.pieces(parts.chain(scalars))
    }

    /// Convolved channels: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.values()
    }
}

impl GatedDelta {
    /// Declares the parameters under `prefix`: two projections with rows interleaved by key head, or four.
    pub(crate) fn declare(
        params: &mut Params,
        prefix: &str,
        shape: GatedDeltaShape,
        together: bool,
    ) -> Self {
        let GatedDeltaShape { hidden, value_heads, value_dim, taps, .. } = shape;
        let (channels, values) = (shape.channels(), shape.values());
        let name = |name: &str| format!("{prefix}.{name}");
        let parts = match together {
            true => &[("qkvz", channels + values), ("ba", 2 * value_heads)][..],
            false => &[("qkv", channels), ("z", values), ("b", value_heads), ("a", value_heads)],
        };
        let project = Projection::stacked(parts.iter().map(|(part, outputs)| {
            params.projection(name(&format!("in_proj_{part}.weight")), *outputs, hidden)
        }));
        Self {
            shape,
            project: if together { shape.apart(&project) } else { project },
            conv_weight: params.add(name("conv1d.weight"), &[channels, 1, taps], fan_in(taps)),
            dt_bias: params.add(name("dt_bias"), &[value_heads], ParamInit::StepBias),
            a_log: params.add(name("A_log"), &[value_heads], ParamInit::DecayRate),
            norm: params.plain_norm(name("norm.weight"), value_dim),
            out: params.projection(name("out_proj.weight"), hidden, values),
        }
    }
}
