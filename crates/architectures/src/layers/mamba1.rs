use crate::builder::ArchitectureBuilder;
use crate::params::{ParamId, ParamInit, Params, Projection, fan_in};
use crate::{Config, ConfigError};

/// A Mamba-1 mixer: a causal convolution and a selective scan with low-rank step sizes.
#[derive(Debug, Clone)]
pub struct Mamba1 {
    /// The shapes.
    pub shape: Mamba1Shape,
    /// Computes x, then the gate.
    pub in_proj: Projection,
    /// `[inner, 1, taps]`.
    pub conv_weight: ParamId,
    /// `[inner]`.
    pub conv_bias: Option<ParamId>,
    /// Computes the step size's low rank, B and C from the convolved x.
    pub x_proj: Projection,
    /// Norms of these three.
    pub norms: Norms,
    /// From the low rank to the step sizes, without its bias.
    pub dt_proj: Projection,
    /// `[inner]`, its bias, which the scan adds inside the softplus.
    pub dt_bias: ParamId,
    /// `[inner, state]`; the rate of a state is `-exp(A_log)`.
    pub a_log: ParamId,
    /// `[inner]`, the skip weight.
    pub d: ParamId,
    /// Output projection.
    pub out_proj: Projection,
}

/// Norms of the step size's low rank, of B and of C.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Norms {
    /// No norms (Mamba).
    None,
    /// Weighted norms with the model's epsilon (Jamba).
    Weighted([ParamId; 3]),
    /// Unweighted norms with a separate epsilon (FalconMamba).
    Plain {
        /// The epsilon.
        eps: f64,
    },
}

/// The shapes of a [`Mamba1`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mamba1Shape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Channels.
    pub inner: usize,
    /// Width of a channel's state.
    pub state: usize,
    /// Taps of the convolution.
    pub taps: usize,
    /// Low rank of the step size.
    pub rank: usize,
}

impl Mamba1Shape {
    /// Marks tap counts that no engine supports.
    pub(crate) fn check(&self, config: &Config, taps: &str, builder: &mut ArchitectureBuilder) {
        if !(2..=4).contains(&self.taps) {
            builder.refuse(config.wrong(taps, "2 to 4 taps"));
        }
    }

    /// The low rank from its key, or derived from the width.
    pub(crate) fn rank(config: &Config, key: &str, hidden: usize) -> Result<usize, ConfigError> {
        Ok(config.count_unless_auto(key)?.unwrap_or(hidden.div_ceil(16)))
    }
}

impl Mamba1 {
    /// Declares the parameters under `prefix`; the biases are the convolution's and the projections'.
    pub(crate) fn declare(
        params: &mut Params,
        prefix: &str,
        shape: Mamba1Shape,
        [conv_bias, proj_bias]: [bool; 2],
    ) -> Self {
        let Mamba1Shape { hidden, inner, state, taps, rank } = shape;
        let name = |name: &str| format!("{prefix}.{name}");
        let mut project = |part: &str, outputs, inputs, bias: bool| {
            let made = params.projection(name(&format!("{part}.weight")), outputs, inputs);
            let bias = bias.then(|| params.bias(name(&format!("{part}.bias")), outputs));
            Projection { bias: bias.into_iter().collect(), ..made }
        };
        let in_proj = project("in_proj", 2 * inner, hidden, proj_bias);
        let x_proj = project("x_proj", rank + 2 * state, inner, false);
        let dt_proj = project("dt_proj", inner, rank, false);
        let out_proj = project("out_proj", hidden, inner, proj_bias);
        Self {
            shape,
            in_proj,
            conv_weight: params.add(name("conv1d.weight"), &[inner, 1, taps], fan_in(taps)),
            conv_bias: conv_bias.then(|| params.bias(name("conv1d.bias"), inner)),
            x_proj,
            norms: Norms::None,
            dt_proj,
            dt_bias: params.add(name("dt_proj.bias"), &[inner], ParamInit::StepBias),
            a_log: params.add(name("A_log"), &[inner, state], ParamInit::DecayRate),
            d: params.add(name("D"), &[inner], ParamInit::Uniform(0.5, 1.5)),
            out_proj,
        }
    }

    /// Adds weighted norms.
    pub(crate) fn normed(self, params: &mut Params, prefix: &str) -> Self {
        let Mamba1Shape { rank, state, .. } = self.shape;
        let of = [("dt", rank), ("b", state), ("c", state)];
        let norm = |(part, width)| params.norm(format!("{prefix}.{part}_layernorm.weight"), width);
        Self { norms: Norms::Weighted(of.map(norm)), ..self }
    }
}
