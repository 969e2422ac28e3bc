use super::Attention;
use crate::builder::ArchitectureBuilder;
use crate::params::{ParamId, ParamInit, Params, Projection, fan_in};
use crate::{Config, ConfigError};

/// The range of step sizes without limits.
pub(crate) const UNLIMITED_DT: [f64; 2] = [0.0, f64::INFINITY];

/// A Mamba-2 mixer: projections, a causal convolution, the state space scan and a gated norm.
#[derive(Debug, Clone)]
pub struct Mamba2 {
    /// The shapes.
    pub shape: Mamba2Shape,
    /// Computes gate, convolved channels and step sizes, in this order; no step sizes if `dt_proj` computes them.
    pub in_proj: Projection,
    /// Computes the step sizes (dt), if their multiplier differs from the gate's.
    pub dt_proj: Option<Projection>,
    /// `[channels, 1, taps]`, the causal convolution of x, B and C.
    pub conv_weight: ParamId,
    /// `[channels]`, its bias.
    pub conv_bias: Option<ParamId>,
    /// `[heads]`; the rate of a head is `-exp(A_log)`.
    pub a_log: ParamId,
    /// `[heads]`, the skip weight.
    pub d: ParamId,
    /// `[heads]`, added to the step sizes.
    pub dt_bias: ParamId,
    /// `[inner]`, the gated norm; `None` for a gate alone.
    pub norm: Option<ParamId>,
    /// Whether the gate is applied after the norm.
    pub norm_before_gate: bool,
    /// Number of ranks that share each group of the norm.
    pub norm_ranks: usize,
    /// Output projection.
    pub out_proj: Projection,
    /// Multipliers.
    pub multipliers: MambaMultipliers,
}

/// Multipliers of a mixer's projections, applied to their outputs so that weights are unchanged in any storage type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MambaMultipliers {
    /// Scales of gate, x, B, C and step sizes, before the convolution; nonzero.
    pub parts: [f64; 5],
    /// Scale of the output.
    pub output: f64,
}

impl Default for MambaMultipliers {
    fn default() -> Self {
        Self { parts: [1.0; 5], output: 1.0 }
    }
}

/// The shapes of a [`Mamba2`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mamba2Shape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Heads.
    pub heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Groups of heads that share B and C, and a norm.
    pub groups: usize,
    /// State size (N).
    pub state: usize,
    /// Taps of the convolution.
    pub taps: usize,
    /// Range to which step sizes are clamped.
    pub dt_limits: [f64; 2],
}

impl Mamba2Shape {
    /// Reads the keys that Granite, Bamba and Falcon-H1 share.
    pub(crate) fn of(
        config: &Config,
        builder: &mut ArchitectureBuilder,
    ) -> Result<Self, ConfigError> {
        let hidden = config.count("hidden_size")?;
        let heads = config.count("mamba_n_heads")?;
        let inner = match config.get("mamba_d_ssm") {
            Some(_) => config.count("mamba_d_ssm")?,
            None => config.count("mamba_expand")? * hidden,
        };
        // "auto" means the inner width divided by the number of heads.
        let head_dim = config.count_unless_auto("mamba_d_head")?.unwrap_or(inner / heads);
        if heads * head_dim != inner {
            let wanted =
                format!("{inner} / `mamba_d_head`, with mamba_expand * hidden_size = {inner}");
            return Err(config.wrong("mamba_n_heads", wanted));
        }
        let shape = Self {
            hidden,
            heads,
            head_dim,
            groups: config.count("mamba_n_groups")?,
            state: config.count("mamba_d_state")?,
            taps: config.count("mamba_d_conv")?,
            dt_limits: builder.need(config.limits("time_step_limit", UNLIMITED_DT), UNLIMITED_DT),
        };
        shape.check(config, ["mamba_n_groups", "mamba_d_conv"], builder)?;
        Ok(shape)
    }

    /// Refuses groups that do not divide the heads, and marks tap counts that no engine supports.
    pub(crate) fn check(
        &self,
        config: &Config,
        [groups, taps]: [&str; 2],
        builder: &mut ArchitectureBuilder,
    ) -> Result<(), ConfigError> {
        if !self.heads.is_multiple_of(self.groups) {
            let wanted = format!("a divisor of the {} heads", self.heads);
            return Err(config.wrong(groups, wanted));
        }
        if !(2..=4).contains(&self.taps) {
            builder.refuse(config.wrong(taps, "2 to 4 taps"));
        }
        Ok(())
    }

    /// Channels of all heads.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Convolved channels: x, B and C.
    pub fn channels(&self) -> usize {
        self.inner() + 2 * self.groups * self.state
    }
}

impl Mamba2 {
    /// Declares the parameters under `prefix`; the biases are the convolution's and the projections'.
    pub(crate) fn declare(
        params: &mut Params,
        prefix: &str,
        shape: Mamba2Shape,
        biases: [bool; 2],
    ) -> Self {
        let core = Self::without_norm(params, prefix, shape, biases);
        let norm = params.norm(format!("{prefix}.norm.weight"), shape.inner());
        Self { norm: Some(norm), ..core }
    }

    /// [`Self::declare`] with a gate instead of the gated norm.
    pub(crate) fn without_norm(
        params: &mut Params,
        prefix: &str,
        shape: Mamba2Shape,
        [conv_bias, proj_bias]: [bool; 2],
    ) -> Self {
        let name = |name: &str| format!("{prefix}.{name}");
        let (inner, channels, taps) = (shape.inner(), shape.channels(), shape.taps);
        let mut project = |part: &str, outputs, inputs| {
            let made = params.projection(name(&format!("{part}.weight")), outputs, inputs);
            let bias = proj_bias.then(|| params.bias(name(&format!("{part}.bias")), outputs));
            Projection { bias: bias.into_iter().collect(), ..made }
        };
        let in_proj = project("in_proj", inner + channels + shape.heads, shape.hidden);
        let out_proj = project("out_proj", shape.hidden, inner);
        let small = ParamInit::Uniform(-0.5, 0.5);
        Self {
            shape,
            in_proj,
            dt_proj: None,
            conv_weight: params.add(name("conv1d.weight"), &[channels, 1, taps], fan_in(taps)),
            conv_bias: conv_bias.then(|| params.add(name("conv1d.bias"), &[channels], small)),
            a_log: params.add(name("A_log"), &[shape.heads], ParamInit::DecayRate),
            d: params.add(name("D"), &[shape.heads], ParamInit::Uniform(0.5, 1.5)),
            dt_bias: params.add(name("dt_bias"), &[shape.heads], ParamInit::StepBias),
            norm: None,
            norm_before_gate: false,
            norm_ranks: 1,
            out_proj,
            multipliers: MambaMultipliers::default(),
        }
    }

    /// Adds multipliers; the projections must have no biases.
    pub(crate) fn with_multipliers(self, multipliers: MambaMultipliers) -> Self {
        let [gate, .., dt] = multipliers.parts;
        let rows = self.shape.inner() + self.shape.channels();
        let separate_dt = gate != dt;
        Self {
            dt_proj: separate_dt.then(|| self.in_proj.pieces([(rows, self.shape.heads)])),
            in_proj: if separate_dt { self.in_proj.pieces([(0, rows)]) } else { self.in_proj },
            multipliers,
            ..self
        }
    }

    /// Rows of all projections from the residual stream.
    pub(crate) fn outputs(&self) -> usize {
        self.in_proj.outputs() + self.dt_proj.as_ref().map_or(0, Projection::outputs)
    }
}

/// Attention and a Mamba-2 mixer in parallel, with the same input.
#[derive(Debug, Clone)]
pub struct Parallel {
    /// The attention.
    pub attention: Attention,
    /// The mixer.
    pub mamba: Mamba2,
}
