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
    /// Taps over queries, keys and values, `[channels, 1, taps]`, in one parameter or in one for each of them.
    pub conv_weights: Vec<ParamId>,
    /// Added to the logits of the decay.
    pub dt_bias: ParamId,
    /// The logarithm of each value head's rate.
    pub a_log: ParamId,
    /// Norm of each value head before its gate; its weight has no offset.
    pub norm: ParamId,
    /// Epsilon of this norm; `None` for the model's.
    pub norm_eps: Option<f64>,
    /// Whether the write strength is in (0, 2) instead of (0, 1), which allows negative eigenvalues of a transition.
    pub negative_eigenvalues: bool,
    /// Output projection.
    pub out: Projection,
}

/// How checkpoints name and store a [`GatedDelta`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct GatedDeltaNames {
    /// Projections of the input with the number of consecutive parts that each computes, of: queries, keys, values,
    /// output gates, write strengths, decays.
    pub(crate) projections: &'static [(&'static str, usize)],
    /// Whether the rows of a projection to several parts are interleaved by key head.
    pub(crate) by_key_head: bool,
    /// Convolutions, of all channels or of queries, keys and values; `conv1d` if the checkpoint has that.
    pub(crate) convolutions: &'static [&'static str],
    pub(crate) norm: &'static str,
    pub(crate) out: &'static str,
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
    /// Declares the parameters under `prefix`.
    pub(crate) fn declare(
        params: &mut Params,
        prefix: &str,
        shape: GatedDeltaShape,
        names: GatedDeltaNames,
    ) -> Self {
        let GatedDeltaShape { hidden, value_heads, value_dim, taps, .. } = shape;
        let (values, keys) = (shape.values(), shape.key_heads * shape.key_dim);
        let name = |name: &str| format!("{prefix}.{name}");
        let mut widths = [keys, keys, values, values, value_heads, value_heads].into_iter();
        let project = Projection::stacked(names.projections.iter().map(|(part, count)| {
            let outputs = widths.by_ref().take(*count).sum();
            params.projection(name(&format!("{part}.weight")), outputs, hidden)
        }));
        let whole: &[&str] = &["conv1d"];
        let convolutions = match params.has(&name("conv1d.weight")) {
            true => whole,
            false => names.convolutions,
        };
        let channels = match convolutions {
            [_] => vec![shape.channels()],
            _ => vec![keys, keys, values],
        };
        // transformers 5.24 saves the convolution of all channels as equal parts, whatever q, k and v are.
        let stored = convolutions
            .iter()
            .filter_map(|part| params.shape_of(&name(&format!("{part}.weight")))?.first().copied());
        let stored: Vec<usize> = stored.collect();
        let is_whole =
            stored.len() == channels.len() && stored.iter().sum::<usize>() == shape.channels();
        let channels = if is_whole { stored } else { channels };
        let convolutions = convolutions.iter().zip(channels).map(|(part, channels)| {
            params.add(name(&format!("{part}.weight")), &[channels, 1, taps], fan_in(taps))
        });
        let conv_weights = convolutions.collect();
        Self {
            shape,
            project: if names.by_key_head { shape.apart(&project) } else { project },
            conv_weights,
            dt_bias: params.add(name("dt_bias"), &[value_heads], ParamInit::StepBias),
            a_log: params.add(name("A_log"), &[value_heads], ParamInit::DecayRate),
            norm: params.plain_norm(name(&format!("{}.weight", names.norm)), value_dim),
            norm_eps: None,
            negative_eigenvalues: false,
            out: params.projection(name(&format!("{}.weight", names.out)), hidden, values),
        }
    }
}
