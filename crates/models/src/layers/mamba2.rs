use crate::params::{Draw, ParamId, Params, Projection, fan_in};

/// A Mamba-2 mixer: projections around a causal convolution, the state space scan and a gated norm.
#[derive(Debug, Clone)]
pub struct Mamba2 {
    /// The shapes.
    pub shape: Mamba2Shape,
    /// Makes gate, convolved channels and step sizes, in this order.
    pub in_proj: Projection,
    /// `[channels, 1, taps]`.
    pub conv_weight: ParamId,
    /// `[channels]`.
    pub conv_bias: Option<ParamId>,
    /// `[heads]`; the rate of a head is `-exp(A_log)`.
    pub a_log: ParamId,
    /// `[heads]`, the skip weight.
    pub d: ParamId,
    /// `[heads]`, added to the step sizes.
    pub dt_bias: ParamId,
    /// `[inner]`, the gated norm.
    pub norm: ParamId,
    /// Back to the residual stream.
    pub out_proj: Projection,
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
    /// Width of the state.
    pub state: usize,
    /// Taps of the convolution.
    pub taps: usize,
    /// Ends of the step sizes.
    pub dt_limits: [f64; 2],
}

impl Mamba2Shape {
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
    /// Declares the parameters under `prefix`.
    pub(crate) fn declare(
        params: &mut Params,
        prefix: &str,
        shape: Mamba2Shape,
        [conv_bias, proj_bias]: [bool; 2],
    ) -> Self {
        let name = |name: &str| format!("{prefix}.{name}");
        let (inner, channels) = (shape.inner(), shape.channels());
        let mut project = |part: &str, outputs, inputs| {
            let mut projection =
                params.projection(name(&format!("{part}.weight")), outputs, inputs);
            projection.bias = proj_bias.then(|| {
                params.add(name(&format!("{part}.bias")), &[outputs], Draw::Uniform(-0.2, 0.2))
            });
            projection
        };
        let in_proj = project("in_proj", inner + channels + shape.heads, shape.hidden);
        let out_proj = project("out_proj", shape.hidden, inner);
        let small = Draw::Uniform(-0.5, 0.5);
        Self {
            shape,
            in_proj,
            conv_weight: params.add(
                name("conv1d.weight"),
                &[channels, 1, shape.taps],
                fan_in(shape.taps),
            ),
            conv_bias: conv_bias.then(|| params.add(name("conv1d.bias"), &[channels], small)),
            a_log: params.add(name("A_log"), &[shape.heads], Draw::DecayRate),
            d: params.add(name("D"), &[shape.heads], Draw::Uniform(0.5, 1.5)),
            dt_bias: params.add(name("dt_bias"), &[shape.heads], Draw::StepBias),
            norm: params.norm(name("norm.weight"), inner),
            out_proj,
        }
    }
}
