use crate::params::{Draw, Params, Projection, fan_in};

/// A Mamba-1 mixer: a causal convolution and a selective scan whose step size goes through a low rank.
#[derive(Debug, Clone)]
pub struct Mamba1 {
    /// The shapes.
    pub shape: Mamba1Shape,
    /// Makes x and gate.
    pub in_proj: Projection,
    /// Makes the step size's low rank, B and C.
    pub x_proj: Projection,
    /// From the low rank to the step sizes.
    pub dt_proj: Projection,
    /// Back to the residual stream.
    pub out_proj: Projection,
}

/// The shapes of a [`Mamba1`], and what it has besides.
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
    /// Whether step size, B and C have norms.
    pub normed: bool,
    /// Whether the convolution, and whether the projections, have biases.
    pub biases: [bool; 2],
}

impl Mamba1 {
    /// Declares the parameters under `prefix`.
    pub(crate) fn declare(params: &mut Params, prefix: &str, shape: Mamba1Shape) -> Self {
        let Mamba1Shape { hidden, inner, state, taps, rank, normed, biases } = shape;
        let [conv_bias, proj_bias] = biases;
        let name = |name: &str| format!("{prefix}.{name}");
        let mut project = |part: &str, outputs, inputs, bias: bool| {
            let made = params.projection(name(&format!("{part}.weight")), outputs, inputs);
            let bias = bias.then(|| params.bias(name(&format!("{part}.bias")), outputs));
            Projection { bias: bias.into_iter().collect(), ..made }
        };
        let in_proj = project("in_proj", 2 * inner, hidden, proj_bias);
        let x_proj = project("x_proj", rank + 2 * state, inner, false);
        let dt_proj = project("dt_proj", inner, rank, true);
        let out_proj = project("out_proj", hidden, inner, proj_bias);
        params.add(name("conv1d.weight"), &[inner, 1, taps], fan_in(taps));
        if conv_bias {
            params.bias(name("conv1d.bias"), inner);
        }
        params.add(name("A_log"), &[inner, state], Draw::DecayRate);
        params.add(name("D"), &[inner], Draw::Uniform(0.5, 1.5));
        if normed {
            for (part, width) in [("dt", rank), ("b", state), ("c", state)] {
                params.norm(name(&format!("{part}_layernorm.weight")), width);
            }
        }
        Self { shape, in_proj, x_proj, dt_proj, out_proj }
    }
}
