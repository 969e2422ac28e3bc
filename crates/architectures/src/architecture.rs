//! A model as data: what a family makes of a config, and what an engine runs.

use crate::builder::ArchitectureBuilder;
use crate::families::ModelFamily;
use crate::layers::{
    Attention, Experts, GatedDelta, GatedMlp, Kda, LatentAttention, LatentShape, Mamba1, Mamba2,
    Mamba2Shape, Parallel, ShortConv,
};
use crate::params::{ParamId, Params, Projection};
use crate::{Config, ConfigError, ShardRank, StateType, TensorShapes, quantization};

/// A model's layers, with the name and shape of every parameter and the value of every multiplier. It is independent of
/// backends.
#[derive(Debug, Clone)]
pub struct Architecture {
    /// The tensor-parallel rank, which has a part of every layer.
    pub place: ShardRank,
    /// The pipeline-parallel stage, which has some of the layers.
    pub stage: ShardRank,
    /// Storage type of the states of Mamba-2's scan ([`Architecture::with_scan_states`]).
    pub scan_states: StateType,
    /// Its family.
    pub family: &'static str,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of token ids.
    pub vocabulary: usize,
    /// Maximum context according to the config, in tokens.
    pub context: usize,
    /// Epsilon of the norms.
    pub eps: f64,
    /// Every parameter.
    pub params: Params,
    /// `[vocabulary, hidden]`; a token's row is the initial residual stream.
    pub embedding: ParamId,
    /// Multiplier of the embedding.
    pub embedding_multiplier: f64,
    /// Multiplier of what each mixer and feed-forward part adds to the residual stream.
    pub residual_multiplier: f64,
    /// The layers.
    pub layers: Vec<Layer>,
    /// The last norm.
    pub norm: ParamId,
    /// `[vocabulary, hidden]`; the embedding if the two are tied.
    pub head: Projection,
    /// Divisor of the logits.
    pub logits_divisor: f64,
    /// Soft cap of the logits, `cap tanh(y / cap)`.
    pub logits_softcap: Option<f64>,
    /// Substrings of the names of tensors that no layer reads.
    pub unused: &'static [&'static str],
    /// Why no engine runs it. Sizes are correct nevertheless; missing values of the arithmetic are NaN or a default.
    pub refused: Option<ConfigError>,
}

impl Architecture {
    /// Describes the model of a config, whether an engine runs it or not ([`Architecture::refused`]).
    ///
    /// # Errors
    /// [`ConfigError`] naming the key without which sizes are unknown, or the names that no family has.
    pub fn describe(config: &Config) -> Result<Self, ConfigError> {
        Self::describe_in(config, ArchitectureBuilder::default())
    }

    fn describe_in(config: &Config, mut builder: ArchitectureBuilder) -> Result<Self, ConfigError> {
        let family = ModelFamily::of(config).ok_or_else(|| unknown(config, false))?;
        let outer_type = config.model_type().unwrap_or_default();
        if config.language_model().is_some() && !family.multimodal_types.contains(&outer_type) {
            builder.refuse(unknown(config, true));
        }
        let mut described = Self { family: family.name, ..(family.read)(config, builder)? };
        described.params.forget_tensors();
        if let Err(reason) = quantization::apply(config, &mut described) {
            described.refused.get_or_insert(reason);
        }
        described.note_expanded();
        Ok(described)
    }

    /// Describes the model of a config for an engine.
    ///
    /// # Errors
    /// [`ConfigError`] naming the key that is missing or wrong, or the names that no family has.
    pub fn of(config: &Config) -> Result<Self, ConfigError> {
        Self::build(config, ArchitectureBuilder::default())
    }

    /// [`Architecture::of`] with the tensor names and the expert layout of a checkpoint.
    ///
    /// # Errors
    /// As [`Architecture::of`].
    pub fn of_checkpoint(config: &Config, tensors: TensorShapes) -> Result<Self, ConfigError> {
        Self::build(config, ArchitectureBuilder::of(tensors))
    }

    fn build(config: &Config, builder: ArchitectureBuilder) -> Result<Self, ConfigError> {
        let described = Self::describe_in(config, builder).map_err(|reason| {
            // A config that is recognized by its keys alone may be of a family with other keys.
            let named = ModelFamily::of(config).is_some_and(|family| family.is_named(config));
            let unnamed = config.names().is_empty();
            if named || unnamed { reason } else { unknown(config, false) }
        })?;
        match described.refused {
            Some(reason) => Err(reason),
            None => Ok(described),
        }
    }

    /// Whether some layer routes tokens to experts. With nearly equal scores, rounding decides the expert.
    pub fn is_routed(&self) -> bool {
        self.layers.iter().any(|layer| layer.experts.is_some())
    }

    /// Something that it computes and for which GPUs have no kernel.
    pub fn cpu_only(&self) -> Option<&'static str> {
        let rotated = |of: &Layer| matches!(&of.mixer, Mixer::Latent(of) if of.rope.is_some());
        let gelu = |of: &Layer| of.mlp.as_ref().is_some_and(|mlp| mlp.gelu);
        let scaled = |of: &Layer| matches!(of.norm_position, NormPosition::Scaled { .. });
        let grouped = |of: &Layer| of.experts.as_ref().is_some_and(Experts::has_groups);
        let any = |is: fn(&Layer) -> bool| self.layers.iter().any(is);
        let found = [
            (any(gelu), "gates a feed-forward part by GELU"),
            (any(rotated), "rotates some channels of latent attention"),
            (any(grouped), "routes tokens to groups of experts"),
            (any(scaled), "multiplies the residual stream by a scalar"),
            (self.logits_softcap.is_some(), "caps logits"),
        ];
        found.into_iter().find(|(is, _)| *is).map(|(_, what)| what)
    }

    /// Whether the head is the embedding.
    pub fn is_tied(&self) -> bool {
        self.head.rows.iter().any(|rows| rows.param == self.embedding)
    }
}

pub(crate) fn unknown(config: &Config, known: bool) -> ConfigError {
    let names = match config.names().as_slice() {
        [] => "a config without model_type and architectures".to_owned(),
        names => names.join(", "),
    };
    ConfigError::Family { path: config.path().to_owned(), names, known }
}

/// The position of a layer's norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPosition {
    /// Before each part: `x += r part(rms(x))`.
    Pre,
    /// After each part: `x += rms(r part(x))`.
    Post,
    /// Before and after each part: `x += rms'(r part(rms(x)))`, with these norms after the mixer and the feed-forward
    /// part.
    Both([ParamId; 2]),
    /// [`NormPosition::Both`], after which the residual stream is multiplied by a scalar. Experts have separate norms:
    /// `x += rms'(rms1(mlp(rms(x))) + rms3(experts(rms2(x))))`.
    Scaled {
        /// After the mixer, and after the feed-forward part.
        after: [ParamId; 2],
        /// After the dense part, before the experts and after them, if there are any.
        experts: Option<[ParamId; 3]>,
        /// The scalar.
        scalar: ParamId,
    },
}

/// With norms before its parts: `x += r mixer(rms(x)); h = rms(x); x += r (experts(h) + mlp(h))`.
#[derive(Debug, Clone)]
pub struct Layer {
    /// Whether its norms precede or follow its parts.
    pub norm_position: NormPosition,
    /// The norm of the mixer, declared before all other parameters of the layer.
    pub input_norm: ParamId,
    /// The token mixer.
    pub mixer: Mixer,
    /// The norm of the feed-forward part; equal to `input_norm` in a layer of one part.
    pub post_norm: ParamId,
    /// Routed experts.
    pub experts: Option<Experts>,
    /// The dense feed-forward part, or the shared expert.
    pub mlp: Option<GatedMlp>,
}

/// The token mixer of a layer.
#[derive(Debug, Clone)]
pub enum Mixer {
    /// A state space layer.
    Mamba2(Mamba2),
    /// Softmax attention with grouped heads.
    Attention(Attention),
    /// Kimi Delta Attention.
    Kda(Kda),
    /// Softmax attention over a latent cache.
    Latent(LatentAttention),
    /// A selective scan.
    Mamba1(Mamba1),
    /// Gated DeltaNet.
    GatedDelta(GatedDelta),
    /// A short convolution between two products.
    ShortConv(ShortConv),
    /// Attention and a state space layer in parallel.
    Parallel(Box<Parallel>),
    /// A layer that is only a feed-forward part.
    None,
}

/// State of a sequence in one layer, in values, independent of its length.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecurrentStateSize {
    /// State of the recurrence.
    pub recurrent: u64,
    /// State of the convolution: all inputs under its taps except the newest.
    pub convolved: u64,
}

impl Mixer {
    /// The kind of layer: `mamba2`, `latent-attention`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Mamba2(_) => "mamba2",
            Self::Attention(_) => "attention",
            Self::Kda(_) => "kda",
            Self::Latent(_) => "latent-attention",
            Self::Mamba1(_) => "mamba",
            Self::GatedDelta(_) => "gated-delta-net",
            Self::ShortConv(_) => "short-convolution",
            Self::Parallel(_) => "attention+mamba2",
            Self::None => "feed-forward",
        }
    }

    /// Its state per sequence.
    pub fn states(&self) -> RecurrentStateSize {
        let of = |recurrent: [usize; 3], channels: usize, taps: usize| RecurrentStateSize {
            recurrent: product(&recurrent),
            convolved: product(&[channels, taps - 1]),
        };
        let mamba2 = |shape: &Mamba2Shape| {
            of([shape.heads, shape.head_dim, shape.state], shape.channels(), shape.taps)
        };
        match self {
            Self::Mamba2(of) => mamba2(&of.shape),
            Self::Parallel(of) => mamba2(&of.mamba.shape),
            Self::Kda(Kda { heads, head_dim: dim, taps, .. }) => {
                of([*heads, *dim, *dim], 3 * heads * dim, *taps)
            }
            Self::Mamba1(Mamba1 { shape, .. }) => {
                of([shape.inner, shape.state, 1], shape.inner, shape.taps)
            }
            Self::GatedDelta(GatedDelta { shape, .. }) => of(
                [shape.value_heads, shape.key_dim, shape.value_dim],
                shape.channels(),
                shape.taps,
            ),
            Self::ShortConv(ShortConv { channels, taps, .. }) => of([0, 0, 0], *channels, *taps),
            Self::Attention(_) | Self::Latent(_) | Self::None => RecurrentStateSize::default(),
        }
    }

    /// Cached values per token.
    pub fn cached(&self) -> usize {
        let of_heads = |of: &Attention| 2 * of.kv_heads * of.head_dim;
        match self {
            Self::Attention(of) => of_heads(of),
            Self::Parallel(of) => of_heads(&of.attention),
            Self::Latent(of) => of.shape.cached(),
            Self::Mamba2(_)
            | Self::Kda(_)
            | Self::Mamba1(_)
            | Self::GatedDelta(_)
            | Self::ShortConv(_)
            | Self::None => 0,
        }
    }

    /// Maximum values per token at any point of the layer, counted from inputs and outputs of its parts.
    pub(crate) fn widest(&self) -> usize {
        match self {
            Self::Mamba2(of) => 2 * of.outputs() + 3 * of.shape.inner(),
            Self::Attention(of) => {
                // Normalized queries and keys exist next to the projected ones.
                let times = if of.norms.is_some() { 3 } else { 2 };
                times * of.qkv.outputs() + 2 * of.out.inputs
            }
            Self::Kda(of) => 2 * of.project.outputs() + 4 * of.heads * of.head_dim,
            Self::Latent(of) => {
                let LatentShape { heads, rank, value, .. } = of.shape;
                let queries = of.query_up.as_ref().map_or(0, |(_, up)| up.outputs());
                of.project.outputs() + queries + heads * (of.shape.cached() + rank + 2 * value)
            }
            Self::Mamba1(of) => 2 * of.in_proj.outputs() + 3 * of.shape.inner,
            Self::GatedDelta(of) => 2 * of.project.outputs() + 3 * of.out.inputs,
            Self::Parallel(of) => {
                let (mamba, qkv) = (&of.mamba, of.attention.qkv.outputs());
                let outputs = mamba.shape.hidden + 2 * (mamba.outputs() + qkv);
                outputs + 3 * mamba.shape.inner() + 2 * of.attention.out.inputs
            }
            // B, C, x, both products and the convolution.
            Self::ShortConv(of) => 6 * of.channels,
            Self::None => 0,
        }
    }
}

/// Saturating product: a config may contain any numbers.
pub(crate) fn product(of: &[usize]) -> u64 {
    of.iter().fold(1, |all: u64, one| all.saturating_mul(*one as u64))
}
